/* The driver of tests/unit/system with a version, and a process that holds memory of its first GPU. */
#include "../machine/fake_nvml.c"

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "580.65.06", length); return OK; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13020; return OK; }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *processes) {
    unsigned room = *count;
    *count = number(handle) == 0 ? 2 : 0;
    if (*count > room) return 7; /* INSUFFICIENT_SIZE */
    if (*count) {
        processes[0] = (Process){(unsigned)atoi(getenv("FAKE_NVML_PID")), 90, 0, 0};
        processes[1] = (Process){4194305, ~0ULL, 0, 0}; /* above any process; memory not available */
    }
    return OK;
}
