package oipserver

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/flambeau-serve/flambeau/frontend/oip"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Region is a part of a POSIX shared memory object that a client has registered.
type Region struct {
	Name     string `json:"name"`
	Key      string `json:"key"` // the object's name: a slash and a file's name
	Offset   int64  `json:"offset"`
	ByteSize int64  `json:"byte_size"`
}

// mostRegions bounds how many regions there may be at a time: each holds a descriptor.
const mostRegions = 1024

// sharedMemory are the regions. They are read and written as files and never mapped: a client that cuts one off cannot hurt the server then.
type sharedMemory struct {
	dir string // where the system has the objects

	mu      sync.Mutex // guards what follows
	regions map[string]*region
}

type region struct {
	Region

	file *os.File
}

// noSharedMemory is the answer to whoever wants to use it where it is off.
func noSharedMemory() error {
	f := fault.New(fault.RouteNotFound, "shared memory is not offered by this server: send and receive the tensors in the body", nil)
	f.Code = statusNotImplemented
	f.Hint = "Start it with system_shared_memory=true; then clients on the same machine can use system shared memory."
	return f
}

// statusNotImplemented is what clients of Triton get for what a server has been built without.
const statusNotImplemented = 501

// statusForbidden is what clients get that are not on this machine.
const statusForbidden = 403

// SharesMemory says whether clients may register shared memory.
func (s *Server) SharesMemory() bool { return s.memory != nil }

// MayShare refuses clients on other machines, which have no shared memory with this one. The network and the address are those of the client as package net
// has them.
func (s *Server) MayShare(network, address string) error {
	if s.memory == nil || network == "unix" {
		return nil
	}
	if at, err := netip.ParseAddrPort(address); err == nil && at.Addr().Unmap().IsLoopback() {
		return nil
	}
	f := fault.New(fault.BadRequest, "shared memory is for clients on the machine of the server, and this request came over the network", nil)
	f.Code = statusForbidden
	f.Hint = "Call 127.0.0.1, [::1] or a unix socket of the server; clients on other machines send the tensors in the body."
	return f
}

// errNoRegion is told of a region that is not there.
func errNoRegion(name string) error {
	return fault.Newf(fault.BadRequest, "Unable to find shared memory region: '%s'", name)
}

// Regions gives the region of that name, or all of them for "".
func (s *Server) Regions(name string) ([]Region, error) {
	all := []Region{}
	if s.memory == nil {
		if name != "" {
			return nil, errNoRegion(name)
		}
		return all, nil
	}
	m := s.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if name != "" && m.regions[name] == nil {
		return nil, errNoRegion(name)
	}
	for _, r := range m.regions {
		if name == "" || r.Name == name {
			all = append(all, r.Region)
		}
	}
	slices.SortFunc(all, func(a, b Region) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// RegisterRegion makes a shared memory object known under a name.
func (s *Server) RegisterRegion(r Region) error {
	if s.memory == nil {
		return noSharedMemory()
	}
	file, err := s.memory.open(&r)
	if err != nil {
		return err
	}
	if err := s.memory.add(&region{Region: r, file: file}); err != nil {
		return errors.Join(err, file.Close())
	}
	return nil
}

func (m *sharedMemory) add(r *region) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.regions[r.Name] != nil:
		return fault.Newf(fault.Conflict, "shared memory region '%s' already in manager", r.Name)
	case len(m.regions) >= mostRegions:
		return fault.Newf(fault.BadRequest, "%d shared memory regions are registered, and no more may be: unregister those that are not used", mostRegions)
	}
	m.regions[r.Name] = r
	return nil
}

// foreign are beginnings of names that objects of programs have, and clients have not: those of workers are not to be read by others.
var foreign = []string{"sem.", "torch_", "nccl", "pym-", "triton_python_backend"} //nolint:gochecknoglobals // a constant list

// open opens the object of a region, which has to be as large as the region says.
func (m *sharedMemory) open(r *Region) (*os.File, error) {
	refuse := func(why string) error {
		return fault.Newf(fault.BadRequest, "failed to register shared memory region '%s': %s", r.Name, why)
	}
	name, slashed := strings.CutPrefix(r.Key, "/")
	switch {
	case r.Name == "":
		return nil, refuse("it has no name")
	case !slashed || name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255:
		return nil, refuse("the key is the name of a POSIX shared memory object: a slash, and a name without any")
	case slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(name, prefix) }):
		return nil, refuse("objects of that name belong to programs, and are not for clients")
	case r.Offset < 0 || r.ByteSize <= 0 || r.Offset+r.ByteSize < 0:
		return nil, refuse("offset has to be at least 0, and byte_size more than 0")
	}
	root, err := os.OpenRoot(m.dir)
	if err != nil {
		return nil, fault.New(fault.Internal, "the folder of shared memory cannot be opened", err)
	}
	defer func() { _ = root.Close() }() // it was only looked up in
	// Without waiting: a pipe of that name has nobody at its other end.
	file, err := root.OpenFile(name, os.O_RDWR|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		why := "the object cannot be opened"
		if errors.Is(err, fs.ErrNotExist) {
			why = "there is no object of that key"
		}
		return nil, refuse("unable to open shared memory region: " + why)
	}
	info, err := file.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		err = refuse("the object is no shared memory")
	case r.Offset+r.ByteSize > info.Size():
		err = fault.Newf(fault.BadRequest, "failed to register shared memory region '%s': offset %d and byte_size %d end behind the object, which has %d bytes",
			r.Name, r.Offset, r.ByteSize, info.Size())
	default:
		return file, nil
	}
	return nil, errors.Join(err, file.Close())
}

// UnregisterRegion forgets the region of that name, or all of them for "". One that is not there is none to forget.
func (s *Server) UnregisterRegion(name string) error {
	if s.memory == nil {
		return nil
	}
	m := s.memory
	m.mu.Lock()
	var gone []*region
	for _, r := range m.regions {
		if name == "" || r.Name == name {
			gone = append(gone, r)
			delete(m.regions, r.Name)
		}
	}
	m.mu.Unlock()
	var errs []error
	for _, r := range gone {
		errs = append(errs, r.file.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fault.New(fault.Internal, "a region of shared memory could not be closed", err)
	}
	return nil
}

// find gives a region that has room for what a tensor wants of it.
func (m *sharedMemory) find(tensor string, at *oip.Shared) (*region, error) {
	m.mu.Lock()
	r := m.regions[at.Region]
	m.mu.Unlock()
	switch {
	case r == nil:
		return nil, errNoRegion(at.Region)
	case at.Size > r.ByteSize || at.Offset > r.ByteSize-at.Size: // without an overflow
		return nil, fault.Newf(fault.BadRequest, "tensor '%s': offset %d and byte size %d end behind the shared memory region '%s', which has %d bytes",
			tensor, at.Offset, at.Size, r.Name, r.ByteSize)
	}
	return r, nil
}

// readShared fetches the inputs that are in shared memory, most bytes of them at most, and looks whether the outputs have room. The function gives back what
// they took of the memory for requests.
func (s *Server) readShared(r *oip.Request, most int64) (give func(), err error) {
	if !r.UsesShared() {
		return func() {}, nil
	}
	if s.memory == nil {
		return nil, noSharedMemory()
	}
	total, err := sharedBytes(r, most)
	if err != nil {
		return nil, err
	}
	give = func() {}
	if s.budget != nil {
		if !s.budget.TakeBytes(total) {
			return nil, fault.TooManyBytes(total, 0)
		}
		give = func() { s.budget.GiveBytes(total) }
	}
	if err := s.memory.fetch(r); err != nil {
		give()
		return nil, err
	}
	return give, nil
}

// sharedBytes is how many bytes the inputs in shared memory have, most at most.
func sharedBytes(r *oip.Request, most int64) (total int64, err error) {
	for i := range r.Inputs {
		at := r.Inputs[i].Shared
		if at == nil {
			continue
		}
		if at.Size > most-total {
			f := fault.Newf(fault.BadRequest, "the inputs in shared memory are larger than %d bytes", most)
			f.Hint = "raise max_request_size, which bounds what a request may hold"
			return 0, f
		}
		total += at.Size
	}
	return total, nil
}

// fetch reads the inputs that are in shared memory, and looks whether the outputs have room.
func (m *sharedMemory) fetch(r *oip.Request) error {
	for i := range r.Inputs {
		if r.Inputs[i].Shared == nil {
			continue
		}
		if err := m.read(&r.Inputs[i]); err != nil {
			return err
		}
	}
	for i := range r.Outputs {
		if at := r.Outputs[i].Shared; at != nil {
			if _, err := m.find(r.Outputs[i].Name, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// read fetches one input. From then on it is like any other.
func (m *sharedMemory) read(t *oip.Tensor) error {
	at := t.Shared
	r, err := m.find(t.Name, at)
	if err != nil {
		return err
	}
	if size := t.DType.Size(); size > 0 { // BYTES tells its length by itself
		if n, err := tensor.Count(t.Shape); err != nil || n*int64(size) != at.Size {
			return fault.Newf(fault.BadRequest, "input '%s' is %d bytes by its shape and datatype, and %d in shared memory", t.Name, n*int64(size), at.Size)
		}
	}
	data := make([]byte, at.Size)
	if _, err := r.file.ReadAt(data, r.Offset+at.Offset); err != nil {
		return fault.New(fault.BadRequest, "input '"+t.Name+"' cannot be read: the shared memory region '"+r.Name+"' has become shorter, or was unregistered", err)
	}
	t.Data, t.Shared = data, nil
	if err := t.Check(); err != nil {
		return fault.New(fault.BadRequest, err.Error(), nil)
	}
	return nil
}

// writeShared puts the outputs that are wanted in shared memory there.
func (s *Server) writeShared(wanted []oip.Requested, r *oip.Response) error {
	for i := range wanted {
		w := &wanted[i]
		if w.Shared == nil || s.memory == nil {
			continue
		}
		for j := range r.Outputs {
			if r.Outputs[j].Name != w.Name {
				continue
			}
			if err := s.memory.write(&r.Outputs[j], w.Shared); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *sharedMemory) write(t *oip.Tensor, at *oip.Shared) error {
	if err := t.Resolve(); err != nil {
		return err //nolint:wrapcheck // its faults are the client's
	}
	r, err := m.find(t.Name, at)
	if err != nil {
		return err
	}
	if int64(len(t.Data)) > at.Size {
		return fault.Newf(fault.BadRequest, "shared memory size specified with the request for output '%s' (%d bytes) should be at least %d bytes to hold the results",
			t.Name, at.Size, len(t.Data))
	}
	info, err := r.file.Stat()
	if err == nil && info.Size() < r.Offset+at.Offset+int64(len(t.Data)) {
		err = errors.New("it has become shorter")
	}
	if err == nil {
		_, err = r.file.WriteAt(t.Data, r.Offset+at.Offset)
	}
	if err != nil {
		return fault.New(fault.BadRequest, "output '"+t.Name+"' cannot be written to the shared memory region '"+r.Name+"': it has become shorter, or was unregistered", err)
	}
	t.Data, t.Shared = nil, at
	return nil
}
