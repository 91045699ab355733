// Package session runs ONNX models with ONNX Runtime: it finds the library, opens a model, and runs tensors through it.
package session
