// libubsan writes its findings to standard error: the log_path of UBSAN_OPTIONS reaches libasan, whose
// functions have the same names. This library, preloaded, sets the path in libubsan itself.

#include <dlfcn.h>
#include <stdlib.h>

__attribute__((constructor)) static void set_path(void) {
    const char *path = getenv("KBROKER_UBSAN_LOG");
    void *library = path == NULL ? NULL : dlopen("libubsan.so.1", RTLD_NOW);
    void *found = library == NULL ? NULL : dlsym(library, "__sanitizer_set_report_path");
    if (found != NULL)
        ((void (*)(const char *))found)(path);
}
