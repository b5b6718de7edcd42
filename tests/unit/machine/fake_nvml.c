/* A driver for tests: four GPUs (an A100, an A100 in MIG mode, a GB10 without memory figures, an H200). */
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct { unsigned long long total, free, used; } Memory;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, LIBRARY_MISMATCH = 18 };

static const char *names[] = {"NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "NVIDIA GB10", "NVIDIA H200",
                              "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A100-SXM4-80GB MIG 2g.20gb"};
static const char *uuids[] = {"GPU-aaaa-1", "GPU-aaaa-2", "GPU-bbbb-3", "GPU-cccc-4", "MIG-1111", "MIG-2222"};
static const int major[] = {8, 8, 12, 9};
static const int minor[] = {0, 0, 1, 0};

static int number(void *handle) { return (int)(long)handle - 1; }
static void *handle_of(int index) { return (void *)(long)(index + 1); }

nvmlReturn_t nvmlInitWithFlags(unsigned flags) { return getenv("FAKE_NVML_BROKEN") ? LIBRARY_MISMATCH : OK; }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(nvmlReturn_t code) { return "fake"; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return OK; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = handle_of(index); return OK; }
nvmlReturn_t nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    strncpy(text, names[number(handle)], length);
    return OK;
}
nvmlReturn_t nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    strncpy(text, uuids[number(handle)], length);
    return OK;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    if (number(handle) == 2) return NOT_SUPPORTED;
    memory->total = 1000 * (number(handle) + 1);
    memory->used = 100;
    memory->free = memory->total - 100;
    return OK;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(void *handle, int *high, int *low) {
    *high = major[number(handle)];
    *low = minor[number(handle)];
    return OK;
}
nvmlReturn_t nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) {
    if (number(handle) == 2) return NOT_SUPPORTED;
    *now = *pending = number(handle) == 1;
    return OK;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { *count = 7; return OK; }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned slot, void **mig) {
    if (slot != 1 && slot != 3) return NOT_FOUND;
    *mig = handle_of(slot == 1 ? 4 : 5);
    return OK;
}

typedef struct { unsigned gpu, memory; } Rates;
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    for (int index = 0; index < 6; index++)
        if (!strcmp(uuids[index], uuid)) {
            *handle = handle_of(index);
            return OK;
        }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *mig, void **handle) {
    *handle = handle_of(1);
    return OK;
}
nvmlReturn_t nvmlDeviceGetIndex(void *handle, unsigned *index) { *index = number(handle); return OK; }
nvmlReturn_t nvmlDeviceGetUtilizationRates(void *handle, Rates *rates) {
    if (number(handle) > 3) return NOT_SUPPORTED; /* of a MIG instance */
    rates->gpu = 100;
    rates->memory = 7;
    return OK;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatt) {
    if (number(handle) == 2) return NOT_SUPPORTED;
    *milliwatt = 123456;
    return OK;
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatt) { *milliwatt = 700000; return OK; }
nvmlReturn_t nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) { *celsius = 61; return OK; }
nvmlReturn_t nvmlDeviceGetClockInfo(void *handle, int clock, unsigned *mhz) {
    *mhz = clock == 1 ? 1410 : 9; /* NVML_CLOCK_SM */
    return OK;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *mask) {
    *mask = number(handle) == 3 ? 0x1 | 0x4 | 0x40 : 0x1;
    return OK;
}
