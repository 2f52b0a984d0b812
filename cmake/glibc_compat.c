// What Debian 12's libstdc++.a and libgcc_eh.a take from glibc 2.35 and 2.36, by means of glibc 2.34: with this the
// programs start on every host since 2021. Hidden, so that no shared library ever gets these instead of glibc's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define HIDDEN __attribute__((visibility("hidden")))

// libstdc++'s std::random_device. glibc 2.36's own cannot fail either: without randomness (a sandbox that forbids the
// call) there is no way on, and asking for ever is none.
HIDDEN uint32_t ddprun_arc4random(void) __asm__("arc4random");
uint32_t ddprun_arc4random(void) {
  uint32_t word;
  while (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word) {
    if (errno != EINTR) abort();
  }
  return word;
}

// libgcc's unwinder: which object has this address, and where is its table of frames? 0 = found.
struct Search {
  uintptr_t address;
  struct dl_find_object* result;
};

static int look(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct Search* search = data;
  const ElfW(Phdr)* frames = NULL;
  uintptr_t begin = 0, end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_GNU_EH_FRAME) frames = header;
    if (header->p_type == PT_LOAD && search->address >= at && search->address < at + header->p_memsz) {
      begin = at;
      end = at + header->p_memsz;
    }
  }
  if (begin == 0 || frames == NULL) return 0;
  search->result->dlfo_flags = 0;
  search->result->dlfo_map_start = (void*)begin;
  search->result->dlfo_map_end = (void*)end;
  search->result->dlfo_eh_frame = (void*)(info->dlpi_addr + frames->p_vaddr);
  return 1;
}

HIDDEN int ddprun_find_object(void* address, struct dl_find_object* result) __asm__("_dl_find_object");
int ddprun_find_object(void* address, struct dl_find_object* result) {
  memset(result, 0, sizeof *result);
  struct Search search = {(uintptr_t)address, result};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
