/* A driver for tests: an H100 that ails in every way, one that has fallen off the bus, one that knows nothing, and one of
 * another user. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned char uuid[16]; nvmlReturn_t status; unsigned clique; unsigned char state; } Fabric;
enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, LOST = 15, LIBRARY_MISMATCH = 18 };

static int number(void *handle) { return (int)(long)handle - 1; }
#define KNOWN(handle) if (number(handle) != 0) return NOT_SUPPORTED

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    if (getenv("FAKE_NVML_HANGS")) pause();
    return getenv("FAKE_NVML_BROKEN") ? LIBRARY_MISMATCH : OK;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(nvmlReturn_t code) { return "fake"; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return OK; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(long)(index + 1);
    return index == 1 ? LOST : index == 3 ? NO_PERMISSION : OK;
}
nvmlReturn_t nvmlDeviceGetName(void *handle, char *text, unsigned length) { strncpy(text, "NVIDIA H100", length); return OK; }
nvmlReturn_t nvmlDeviceGetUUID(void *handle, char *text, unsigned length) { strncpy(text, number(handle) ? "GPU-3" : "GPU-1", length); return OK; }
nvmlReturn_t nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) { KNOWN(handle); strcpy(pci->bus_id, "00000000:3B:00.0"); return OK; }
nvmlReturn_t nvmlDeviceGetPersistenceMode(void *handle, unsigned *mode) { KNOWN(handle); *mode = 0; return OK; }
nvmlReturn_t nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) { KNOWN(handle); *now = 1; *pending = 0; return OK; }
nvmlReturn_t nvmlDeviceGetComputeMode(void *handle, unsigned *mode) { KNOWN(handle); *mode = 3; return OK; }
nvmlReturn_t nvmlDeviceGetPerformanceState(void *handle, unsigned *state) { KNOWN(handle); *state = 0; return OK; }
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *bits) { KNOWN(handle); *bits = 0x48; return OK; }
nvmlReturn_t nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *celsius) { KNOWN(handle); *celsius = 91; return OK; }
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *mw) { KNOWN(handle); *mw = 350000; return OK; }
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(void *handle, unsigned *mw) { KNOWN(handle); *mw = 700000; return OK; }
nvmlReturn_t nvmlDeviceGetTotalEccErrors(void *handle, unsigned type, unsigned counter, unsigned long long *count) {
    KNOWN(handle);
    *count = type == 1 && counter == 0 ? 2 : 99; /* uncorrected, volatile */
    return OK;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    KNOWN(handle);
    *corrected = 7; *uncorrected = 8; *pending = 1; *failed = 0;
    return OK;
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *value) { KNOWN(handle); *value = 1; return OK; }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *value) { KNOWN(handle); *value = 5; return OK; }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *value) { KNOWN(handle); *value = 8; return OK; }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *value) { KNOWN(handle); *value = 16; return OK; }
nvmlReturn_t nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *up) {
    KNOWN(handle);
    if (link > 2) return NOT_SUPPORTED;
    *up = link != 1;
    return OK;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(void *handle, Fabric *fabric) { KNOWN(handle); fabric->state = 2; return OK; }
nvmlReturn_t nvmlDeviceGetP2PStatus(void *one, void *other, unsigned what, unsigned *status) { KNOWN(one); *status = 4; return OK; }
