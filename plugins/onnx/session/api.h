// The part of ONNX Runtime's C interface that values and runs need. Its functions lie in a table whose order never changes; each name below is declared as
// in onnxruntime_c_api.h.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct OrtStatus OrtStatus;
typedef struct OrtSession OrtSession;
typedef struct OrtValue OrtValue;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtTypeInfo OrtTypeInfo;

enum { port_input, port_output, port_initializer };
enum { rank_unknown = -1, max_rank = 64 };

// A port of a model, or what a value is.
typedef struct {
	int kind;     // ONNXType
	int optional; // the port may get nothing
	int listed;   // a sequence: element and shape are its members'
	int element;  // ONNXTensorElementDataType
	int rank;     // rank_unknown: any
	int64_t shape[max_rank];
} ort_type;

// ort_load takes the functions from a library that is loaded already. It gives an error's text, or NULL.
const char *ort_load(const char *path);

const char *ort_message(OrtStatus *status);
void ort_release_status(OrtStatus *status);

OrtStatus *ort_port_count(OrtSession *session, int which, size_t *count);
// ort_port describes a port; the name is to be freed by ort_free_name.
OrtStatus *ort_port(OrtSession *session, int which, size_t i, char **name, ort_type *type);
void ort_free_name(char *name);

OrtStatus *ort_tensor(void *data, size_t size, const int64_t *shape, size_t rank, int element, OrtValue **value);
OrtStatus *ort_strings(const int64_t *shape, size_t rank, OrtValue **value);
OrtStatus *ort_set_string(OrtValue *value, size_t i, const void *text, size_t length);
OrtStatus *ort_collection(OrtValue **members, size_t count, int kind, OrtValue **value);
void ort_release(OrtValue *value);

OrtStatus *ort_describe(OrtValue *value, ort_type *type, int *present);
OrtStatus *ort_data(OrtValue *value, void **data);
OrtStatus *ort_string_bytes(OrtValue *value, size_t *length);
OrtStatus *ort_get_strings(OrtValue *value, void *buffer, size_t length, size_t *offsets, size_t count);
OrtStatus *ort_count(OrtValue *value, size_t *count);
OrtStatus *ort_member(OrtValue *value, int i, OrtValue **member);

OrtStatus *ort_run_options(OrtRunOptions **options);
OrtStatus *ort_terminate(OrtRunOptions *options);
void ort_release_run_options(OrtRunOptions *options);
OrtStatus *ort_run(OrtSession *session, OrtRunOptions *options, char **in, OrtValue **given, size_t inputs, char **out, size_t outputs, OrtValue **got);
