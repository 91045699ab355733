package session

/*
#include "api.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// Options say how a model is run. Zero values are good defaults.
type Options struct {
	Providers  []Provider // in the order of preference; the CPU comes last by itself
	IntraOp    int        // threads within an operator; 0: one
	InterOp    int        // threads between operators; 0: one, and operators run one after another
	Spin       bool       // whether threads wait by spinning, which is faster for a lone model and slows everything beside it
	NoArena    bool       // memory is given back after each run
	NoPatterns bool       // memory is not laid out beforehand
	Optimize   string     // all (the default), extended, basic or off
	ErrorsOnly bool       // ONNX Runtime writes no warnings about the model
	Config     map[string]string
}

// Provider is an execution provider with its options.
type Provider struct {
	Name    string // CPU, CUDA, TensorRT, or a name as ONNX Runtime has it
	Options map[string]string
}

// Port is an input or an output of a model.
type Port struct {
	Name     string
	DType    tensor.DType // of a tensor, or of the tensors of a sequence; "" for what is none, or of a type that is not known
	Shape    []int64      // -1 for a dimension that may have any length; nil for any shape, empty for a scalar
	Kind     string       // tensor, sequence, map, or what else
	Optional bool         // it may be absent
}

// IsTensor says whether the port takes or gives a tensor.
func (p *Port) IsTensor() bool { return p.Kind == kindTensor && p.DType != "" }

const kindTensor = "tensor"

// Session is an open model. Its methods are safe for concurrent use.
type Session struct {
	Inputs, Outputs []Port
	Defaults        []Port            // further inputs, which have a value when none is given
	Metadata        map[string]string // the model's own
	Producer        string

	names map[string]*C.char // of all ports, in the library's memory
	all   []string           // names of the outputs

	mu      sync.RWMutex // guards session, which is nil once closed
	session *ort.DynamicAdvancedSession
}

// Open opens a model file. Init must have been called.
func Open(path string, opts Options) (*Session, error) {
	s := &Session{Metadata: map[string]string{}}
	settings, err := settingsOf(opts)
	if err != nil {
		return nil, err
	}
	s.session, err = ort.NewDynamicAdvancedSession(path, nil, nil, settings)
	if err = errors.Join(err, settings.Destroy()); err != nil {
		return nil, fmt.Errorf("the model cannot be opened: %w", err)
	}
	if err := s.readPorts(); err != nil {
		return nil, errors.Join(fmt.Errorf("the model's inputs and outputs: %w", err), s.Close())
	}
	if err := s.readMetadata(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Session) readMetadata() error {
	m, err := s.session.GetModelMetadata()
	if err != nil {
		return fmt.Errorf("the model's metadata: %w", err)
	}
	if s.Producer, err = m.GetProducerName(); err != nil {
		s.Producer = ""
	}
	keys, err := m.GetCustomMetadataMapKeys()
	if err != nil {
		return errors.Join(fmt.Errorf("the model's metadata: %w", err), m.Destroy())
	}
	for _, key := range keys {
		if value, found, err := m.LookupCustomMetadataMap(key); err == nil && found {
			s.Metadata[key] = value
		}
	}
	return m.Destroy()
}

// Close frees the model.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		return nil
	}
	err := s.session.Destroy()
	s.session = nil
	s.freeNames()
	return err
}

func settingsOf(opts Options) (*ort.SessionOptions, error) {
	o, err := ort.NewSessionOptions()
	if err != nil {
		return nil, fmt.Errorf("the session's options: %w", err)
	}
	level, known := map[string]ort.GraphOptimizationLevel{
		"": ort.GraphOptimizationLevelEnableAll, "all": ort.GraphOptimizationLevelEnableAll, "extended": ort.GraphOptimizationLevelEnableExtended,
		"basic": ort.GraphOptimizationLevelEnableBasic, "off": ort.GraphOptimizationLevelDisableAll,
	}[opts.Optimize]
	if !known {
		return nil, errors.Join(fmt.Errorf("graph optimization %q is none of all, extended, basic, off", opts.Optimize), o.Destroy())
	}
	spin := "0"
	if opts.Spin {
		spin = "1"
	}
	mode := ort.ExecutionMode(ort.ExecutionModeSequential)
	if opts.InterOp > 1 {
		mode = ort.ExecutionModeParallel
	}
	err = errors.Join(
		o.SetGraphOptimizationLevel(level), o.SetExecutionMode(mode), o.SetIntraOpNumThreads(max(opts.IntraOp, 1)), o.SetInterOpNumThreads(max(opts.InterOp, 1)),
		o.SetCpuMemArena(!opts.NoArena), o.SetMemPattern(!opts.NoPatterns && opts.InterOp <= 1),
		o.AddSessionConfigEntry("session.intra_op.allow_spinning", spin), o.AddSessionConfigEntry("session.inter_op.allow_spinning", spin),
	)
	if opts.ErrorsOnly {
		err = errors.Join(err, o.SetLogSeverityLevel(ort.LoggingLevelError))
	}
	for key, value := range opts.Config {
		err = errors.Join(err, o.AddSessionConfigEntry(key, value))
	}
	for _, p := range opts.Providers {
		err = errors.Join(err, appendProvider(o, p))
	}
	if err != nil {
		return nil, errors.Join(err, o.Destroy())
	}
	return o, nil
}

// appendProvider adds an execution provider by its name.
func appendProvider(o *ort.SessionOptions, p Provider) (err error) {
	switch strings.ToLower(strings.TrimSuffix(p.Name, "ExecutionProvider")) {
	case "cpu":
		return nil // it is always the last one
	case "cuda":
		var cuda *ort.CUDAProviderOptions
		if cuda, err = ort.NewCUDAProviderOptions(); err == nil {
			err = errors.Join(cuda.Update(p.Options), o.AppendExecutionProviderCUDA(cuda), cuda.Destroy())
		}
	case "tensorrt":
		var trt *ort.TensorRTProviderOptions
		if trt, err = ort.NewTensorRTProviderOptions(); err == nil {
			err = errors.Join(trt.Update(p.Options), o.AppendExecutionProviderTensorRT(trt), trt.Destroy())
		}
	default:
		err = o.AppendExecutionProvider(p.Name, p.Options)
	}
	if err != nil {
		return fmt.Errorf("the execution provider %s cannot be used: %w", p.Name, err)
	}
	return nil
}

type (
	onnxType    = ort.ONNXType
	elementType = ort.TensorElementDataType
)

func kindOf(t ort.ONNXType) string {
	switch t {
	case ort.ONNXTypeTensor:
		return kindTensor
	case ort.ONNXTypeSequence:
		return "sequence"
	case ort.ONNXTypeMap:
		return "map"
	case ort.ONNXTypeSparseTensor:
		return "sparse tensor"
	case ort.ONNXTypeOptional:
		return "optional"
	}
	return "opaque value"
}
