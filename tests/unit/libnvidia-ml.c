/* A stub of NVIDIA's libnvidia-ml: STANDIN_NVML holds the GPUs, for each "BUS_ID PERCENT USED TOTAL MIG;", in MiB, such
 * as "0000:01:00.0 90 1024 81559 0;". Like the original, it fails before nvmlInit_v2, and has no utilization if MIG is
 * enabled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu { char bus_id[32]; unsigned percent; unsigned long long used, total; unsigned mig; };
struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
static struct gpu gpus[8];
static int count = -1;
enum { UNINITIALIZED = 1, NOT_SUPPORTED = 3, NOT_FOUND = 6 }; /* of nvmlReturn_t */

int nvmlInit_v2(void) {
    char *text = strdup(getenv("STANDIN_NVML"));
    count = 0;
    for (char *part = strtok(text, ";"); part && count < 8; part = strtok(NULL, ";")) {
        struct gpu *gpu = &gpus[count];
        count += sscanf(part, "%31s %u %llu %llu %u", gpu->bus_id, &gpu->percent, &gpu->used, &gpu->total, &gpu->mig) == 5;
    }
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct gpu **handle) {
    for (int number = 0; number < count; number++)
        if (!strcmp(gpus[number].bus_id, bus_id)) return *handle = &gpus[number], 0;
    return count < 0 ? UNINITIALIZED : NOT_FOUND;
}

int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned *current, unsigned *pending) {
    if (gpu->mig > 1) return NOT_SUPPORTED; /* of an older GPU */
    return *current = *pending = gpu->mig, 0;
}

int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilization *found) {
    if (gpu->mig == 1) return NOT_SUPPORTED;
    return found->gpu = gpu->percent, found->memory = 7, 0;
}

int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *found) {
    found->total = gpu->total << 20, found->used = gpu->used << 20, found->free = found->total - found->used;
    return 0;
}
