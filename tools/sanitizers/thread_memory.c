/* What code built by rustc calls where its memory is copied or set, and the C compiler's runtime of ThreadSanitizer lacks.
 * The runtime watches these functions of the C library. Built with -fno-builtin, so that they stay calls. */
#include <string.h>

void *__tsan_memcpy(void *to, const void *from, size_t size) { return memcpy(to, from, size); }
void *__tsan_memmove(void *to, const void *from, size_t size) { return memmove(to, from, size); }
void *__tsan_memset(void *to, int value, size_t size) { return memset(to, value, size); }
