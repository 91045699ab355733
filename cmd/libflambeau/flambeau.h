/* What libflambeau.so offers beside the functions that Go exports: docs/protocol.md describes them all. */
#ifndef FLAMBEAU_H
#define FLAMBEAU_H

#include <stdint.h>

typedef struct {
	uint64_t id;
	uint64_t kind;
	const uint8_t *data;
	uint64_t len;
} flambeau_job;

const char *flambeau_error(void);

/* Keeps the text for flambeau_error, for the calling thread. */
__attribute__((visibility("hidden"))) void flambeau_set_error(const char *text, uint64_t len);

#endif
