package oip

import "math"

// Shared says where in a region of shared memory a tensor's elements are, or are wanted: as they would stand in a body.
type Shared struct {
	Region       string
	Offset, Size int64 // bytes; neither is negative
}

// TakeShared reads the parameters of an input or output about shared memory, and takes them away; nil when there are none.
func TakeShared(p Parameters) (*Shared, error) {
	given, ok := p[paramRegion]
	if !ok {
		return nil, nil //nolint:nilnil // nil is none
	}
	s := &Shared{}
	if s.Region, ok = given.(string); !ok || s.Region == "" {
		return nil, expect(paramRegion, given, false, needsRegion)
	}
	if s.Size, ok = p.Int(paramRegionSize); !ok || s.Size < 0 {
		return nil, badParameter("the parameter %s is %s, and has to be a number of bytes", paramRegionSize, valueText(p[paramRegionSize]))
	}
	if _, given := p[paramRegionOffset]; given {
		if s.Offset, ok = p.Int(paramRegionOffset); !ok || s.Offset < 0 {
			return nil, badParameter("the parameter %s is %s, and has to be a number of bytes", paramRegionOffset, valueText(p[paramRegionOffset]))
		}
	}
	if s.Offset > math.MaxInt64-s.Size {
		return nil, badParameter("the parameters %s and %s are larger than any region", paramRegionOffset, paramRegionSize)
	}
	delete(p, paramRegion)
	delete(p, paramRegionSize)
	delete(p, paramRegionOffset)
	return s, nil
}

// UsesShared says whether any tensor is in shared memory, or is wanted there.
func (r *Request) UsesShared() bool {
	for i := range r.Inputs {
		if r.Inputs[i].Shared != nil {
			return true
		}
	}
	for i := range r.Outputs {
		if r.Outputs[i].Shared != nil {
			return true
		}
	}
	return false
}
