#include "api.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

typedef struct OrtAllocator OrtAllocator;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtSequenceTypeInfo OrtSequenceTypeInfo;
typedef struct OrtOptionalTypeInfo OrtOptionalTypeInfo;

typedef struct {
	void **(*GetApi)(uint32_t version);
	const char *(*GetVersionString)(void);
} OrtApiBase;

enum { api_version = 24, kind_tensor = 1, kind_sequence = 2, kind_optional = 6 };

// Places in the table.
enum {
	GetErrorMessage = 2,
	Run = 9,
	SessionGetInputCount = 30,
	SessionGetOutputCount = 31,
	SessionGetOverridableInitializerCount = 32,
	SessionGetInputTypeInfo = 33,
	SessionGetOutputTypeInfo = 34,
	SessionGetOverridableInitializerTypeInfo = 35,
	SessionGetInputName = 36,
	SessionGetOutputName = 37,
	SessionGetOverridableInitializerName = 38,
	CreateRunOptions = 39,
	RunOptionsSetTerminate = 46,
	CreateTensorAsOrtValue = 48,
	CreateTensorWithDataAsOrtValue = 49,
	GetTensorMutableData = 51,
	GetStringTensorDataLength = 53,
	GetStringTensorContent = 54,
	CastTypeInfoToTensorInfo = 55,
	GetOnnxTypeFromTypeInfo = 56,
	GetTensorElementType = 60,
	GetDimensionsCount = 61,
	GetDimensions = 62,
	GetTensorTypeAndShape = 65,
	GetValueType = 67,
	CreateCpuMemoryInfo = 69,
	AllocatorFree = 76,
	GetAllocatorWithDefaultOptions = 78,
	GetValue = 80,
	GetValueCount = 81,
	CreateValue = 82,
	ReleaseStatus = 93,
	ReleaseValue = 96,
	ReleaseRunOptions = 97,
	ReleaseTypeInfo = 98,
	ReleaseTensorTypeAndShapeInfo = 99,
	CastTypeInfoToSequenceTypeInfo = 104,
	GetSequenceElementType = 107,
	HasValue = 192,
	CastTypeInfoToOptionalTypeInfo = 250,
	GetOptionalContainedTypeInfo = 251,
	GetResizedStringTensorElementBuffer = 252,
	TensorTypeAndShape_HasShape = 390,
};

static void **api;
static OrtAllocator *allocator;
static OrtMemoryInfo *memory;

// CALL calls a function of the table that gives a status; the types are those of its parameters.
#define CALL(function, types) ((OrtStatus * (*)types) api[function])
#define RELEASE(function, value) ((void (*)(void *))api[function])(value)
#define TRY(call)                                                                                                                                            \
	do {                                                                                                                                                 \
		OrtStatus *status = call;                                                                                                                    \
		if (status)                                                                                                                                  \
			return status;                                                                                                                       \
	} while (0)

const char *ort_load(const char *path) {
	void *library = dlopen(path, RTLD_LAZY);
	if (!library)
		return dlerror();
	OrtApiBase *(*base)(void) = (OrtApiBase * (*)(void)) dlsym(library, "OrtGetApiBase");
	if (!base)
		return "it has no OrtGetApiBase";
	void **table = base()->GetApi(api_version);
	if (!table)
		return "it is too old";
	api = table;
	if (CALL(GetAllocatorWithDefaultOptions, (OrtAllocator **))(&allocator) || CALL(CreateCpuMemoryInfo, (int, int, OrtMemoryInfo **))(0, 0, &memory))
		return "it gives no memory"; // nothing could go on: the process ends
	return NULL;
}

const char *ort_message(OrtStatus *status) { return ((const char *(*)(OrtStatus *))api[GetErrorMessage])(status); }
void ort_release_status(OrtStatus *status) { RELEASE(ReleaseStatus, status); }

OrtStatus *ort_port_count(OrtSession *session, int which, size_t *count) {
	return CALL(SessionGetInputCount + which, (OrtSession *, size_t *))(session, count);
}

// shape_of fills in what a tensor's info says.
static OrtStatus *shape_of(const OrtTensorTypeAndShapeInfo *info, ort_type *type) {
	TRY(CALL(GetTensorElementType, (const OrtTensorTypeAndShapeInfo *, int *))(info, &type->element));
	type->rank = rank_unknown;
	if (!((bool (*)(const OrtTensorTypeAndShapeInfo *))api[TensorTypeAndShape_HasShape])(info))
		return NULL;
	size_t rank = 0;
	TRY(CALL(GetDimensionsCount, (const OrtTensorTypeAndShapeInfo *, size_t *))(info, &rank));
	if (rank > max_rank)
		return NULL; // nobody has seen one: it stays unknown
	type->rank = (int)rank;
	return CALL(GetDimensions, (const OrtTensorTypeAndShapeInfo *, int64_t *, size_t))(info, type->shape, rank);
}

static OrtStatus *type_of(OrtTypeInfo *info, ort_type *type) {
	TRY(CALL(GetOnnxTypeFromTypeInfo, (const OrtTypeInfo *, int *))(info, &type->kind));
	if (type->kind == kind_optional && !type->optional) {
		const OrtOptionalTypeInfo *optional = NULL;
		OrtTypeInfo *contained = NULL;
		TRY(CALL(CastTypeInfoToOptionalTypeInfo, (const OrtTypeInfo *, const OrtOptionalTypeInfo **))(info, &optional));
		TRY(CALL(GetOptionalContainedTypeInfo, (const OrtOptionalTypeInfo *, OrtTypeInfo **))(optional, &contained));
		type->optional = 1;
		OrtStatus *status = type_of(contained, type);
		RELEASE(ReleaseTypeInfo, contained);
		return status;
	}
	if (type->kind == kind_sequence && !type->listed) {
		const OrtSequenceTypeInfo *sequence = NULL;
		OrtTypeInfo *member = NULL;
		TRY(CALL(CastTypeInfoToSequenceTypeInfo, (const OrtTypeInfo *, const OrtSequenceTypeInfo **))(info, &sequence));
		TRY(CALL(GetSequenceElementType, (const OrtSequenceTypeInfo *, OrtTypeInfo **))(sequence, &member));
		type->listed = 1;
		OrtStatus *status = type_of(member, type);
		type->kind = kind_sequence;
		RELEASE(ReleaseTypeInfo, member);
		return status;
	}
	if (type->kind != kind_tensor)
		return NULL;
	const OrtTensorTypeAndShapeInfo *tensor = NULL;
	TRY(CALL(CastTypeInfoToTensorInfo, (const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **))(info, &tensor));
	return tensor ? shape_of(tensor, type) : NULL;
}

OrtStatus *ort_port(OrtSession *session, int which, size_t i, char **name, ort_type *type) {
	TRY(CALL(SessionGetInputName + which, (OrtSession *, size_t, OrtAllocator *, char **))(session, i, allocator, name));
	OrtTypeInfo *info = NULL;
	memset(type, 0, sizeof *type);
	OrtStatus *status = CALL(SessionGetInputTypeInfo + which, (OrtSession *, size_t, OrtTypeInfo **))(session, i, &info);
	if (!status) {
		status = type_of(info, type);
		RELEASE(ReleaseTypeInfo, info);
	}
	if (status)
		ort_free_name(*name);
	return status;
}

void ort_free_name(char *name) {
	OrtStatus *status = CALL(AllocatorFree, (OrtAllocator *, void *))(allocator, name);
	if (status)
		ort_release_status(status);
}

OrtStatus *ort_tensor(void *data, size_t size, const int64_t *shape, size_t rank, int element, OrtValue **value) {
	return CALL(CreateTensorWithDataAsOrtValue, (const OrtMemoryInfo *, void *, size_t, const int64_t *, size_t, int, OrtValue **))(memory, data, size, shape,
																	rank, element, value);
}

OrtStatus *ort_strings(const int64_t *shape, size_t rank, OrtValue **value) {
	return CALL(CreateTensorAsOrtValue, (OrtAllocator *, const int64_t *, size_t, int, OrtValue **))(allocator, shape, rank, 8, value);
}

OrtStatus *ort_set_string(OrtValue *value, size_t i, const void *text, size_t length) {
	char *buffer = NULL;
	TRY(CALL(GetResizedStringTensorElementBuffer, (OrtValue *, size_t, size_t, char **))(value, i, length, &buffer));
	if (length)
		memcpy(buffer, text, length);
	return NULL;
}

OrtStatus *ort_collection(OrtValue **members, size_t count, int kind, OrtValue **value) {
	return CALL(CreateValue, (OrtValue **, size_t, int, OrtValue **))(members, count, kind, value);
}

void ort_release(OrtValue *value) { RELEASE(ReleaseValue, value); }

OrtStatus *ort_describe(OrtValue *value, ort_type *type, int *present) {
	memset(type, 0, sizeof *type);
	TRY(CALL(HasValue, (const OrtValue *, int *))(value, present));
	if (!*present)
		return NULL;
	TRY(CALL(GetValueType, (const OrtValue *, int *))(value, &type->kind));
	if (type->kind != kind_tensor)
		return NULL;
	OrtTensorTypeAndShapeInfo *info = NULL;
	TRY(CALL(GetTensorTypeAndShape, (const OrtValue *, OrtTensorTypeAndShapeInfo **))(value, &info));
	OrtStatus *status = shape_of(info, type);
	RELEASE(ReleaseTensorTypeAndShapeInfo, info);
	return status;
}

OrtStatus *ort_data(OrtValue *value, void **data) { return CALL(GetTensorMutableData, (OrtValue *, void **))(value, data); }

OrtStatus *ort_string_bytes(OrtValue *value, size_t *length) { return CALL(GetStringTensorDataLength, (const OrtValue *, size_t *))(value, length); }

OrtStatus *ort_get_strings(OrtValue *value, void *buffer, size_t length, size_t *offsets, size_t count) {
	return CALL(GetStringTensorContent, (const OrtValue *, void *, size_t, size_t *, size_t))(value, buffer, length, offsets, count);
}

OrtStatus *ort_count(OrtValue *value, size_t *count) { return CALL(GetValueCount, (const OrtValue *, size_t *))(value, count); }

OrtStatus *ort_member(OrtValue *value, int i, OrtValue **member) {
	return CALL(GetValue, (const OrtValue *, int, OrtAllocator *, OrtValue **))(value, i, allocator, member);
}

OrtStatus *ort_run_options(OrtRunOptions **options) { return CALL(CreateRunOptions, (OrtRunOptions **))(options); }
OrtStatus *ort_terminate(OrtRunOptions *options) { return CALL(RunOptionsSetTerminate, (OrtRunOptions *))(options); }
void ort_release_run_options(OrtRunOptions *options) { RELEASE(ReleaseRunOptions, options); }

OrtStatus *ort_run(OrtSession *session, OrtRunOptions *options, char **in, OrtValue **given, size_t inputs, char **out, size_t outputs, OrtValue **got) {
	return CALL(Run, (OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t, const char *const *, size_t, OrtValue **))(
		session, options, (const char *const *)in, (const OrtValue *const *)given, inputs, (const char *const *)out, outputs, got);
}
