#include "flambeau.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/*
 * A text for each thread, so that no other thread can change it while it is read. Not _Thread_local: a library that is
 * loaded late has very little room for that.
 */
static pthread_key_t text_key;
static pthread_once_t text_once = PTHREAD_ONCE_INIT;
static int text_key_made;

static void make_text_key(void)
{
	text_key_made = pthread_key_create(&text_key, free) == 0;
}

void flambeau_set_error(const char *text, uint64_t len)
{
	char *copy, *old;

	pthread_once(&text_once, make_text_key);
	if (!text_key_made)
		return;
	copy = malloc(len + 1);
	if (copy == NULL)
		return;
	memcpy(copy, text, len);
	copy[len] = '\0';
	old = pthread_getspecific(text_key);
	if (pthread_setspecific(text_key, copy) != 0) {
		free(copy);
		return;
	}
	free(old);
}

const char *flambeau_error(void)
{
	const char *text;

	pthread_once(&text_once, make_text_key);
	text = text_key_made ? pthread_getspecific(text_key) : NULL;
	return text != NULL ? text : "";
}
