/* A stub of NVIDIA's libcuda: STANDIN_CUDA holds the CUDA version and the GPUs, such as "12020 70 80". STANDIN_INIT is
 * the error code with which the driver fails to start; with "hang" it hangs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int numbers[9], count;

__attribute__((constructor)) static void read_environment(void) {
    char *words = strdup(getenv("STANDIN_CUDA"));
    for (char *word = strtok(words, " "); word && count < 9; word = strtok(NULL, " ")) numbers[count++] = atoi(word);
}

int cuInit(unsigned flags) {
    const char *code = getenv("STANDIN_INIT");
    if (code && !strcmp(code, "hang")) sleep(600);
    return code ? atoi(code) : flags || count < 2 ? 100 : 0; /* CUDA_ERROR_NO_DEVICE */
}

int cuGetErrorString(int code, const char **text) { return *text = code == 802 ? "system not yet initialized" : "?", 0; }
int cuDriverGetVersion(int *version) { return *version = numbers[0], 0; }
int cuDeviceGetCount(int *found) { return *found = count - 1, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal + 1, 0; }
int cuDeviceGetPCIBusId(char *text, int size, int device) { return snprintf(text, size, "0000:%02x:00.0", device), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 75: return *value = numbers[device] / 10, 0; /* COMPUTE_CAPABILITY_MAJOR */
    case 76: return *value = numbers[device] % 10, 0; /* COMPUTE_CAPABILITY_MINOR */
    }
    return 1; /* CUDA_ERROR_INVALID_VALUE */
}
