package e2e

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// migrated is a handler as those that come from TorchServe: it imports what they import, and torch only by the way.
const migrated = `import logging
from ts.context import Context
from ts.utils.util import PredictionException
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler


class H(BaseHandler):
    def initialize(self, ctx: Context):
        self.dir = ctx.system_properties["model_dir"]
        self.initialized = True

    def preprocess(self, data):
        return [r.get("data") or r.get("body") for r in data]

    def inference(self, x):
        return [len(v) for v in x]

    def postprocess(self, y):
        return y
`

// needsTorch is one whose initialize is BaseHandler's.
const needsTorch = `from ts.torch_handler.base_handler import BaseHandler


class H(BaseHandler):
    pass
`

// TestMigratedHandlerNeedsNoTorch runs it by a Python that has neither torch nor torchserve, and by one that has torch: both answer the same. What truly needs torch says so.
func TestMigratedHandlerNeedsNoTorch(t *testing.T) {
	box := NewBox(t)
	box.packWith(t, "migrated", migrated, "")
	box.packWith(t, "needing", needsTorch, "")
	folder := filepath.Join(box.Dir, "bare")
	if said, err := exec.CommandContext(t.Context(), box.Python, "-m", "venv", "--without-pip", folder).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for name, config := range map[string]map[string]string{
		"with torch":    nil,
		"without torch": {"python": filepath.Join(folder, "bin", "python")},
	} {
		t.Run(name, func(t *testing.T) {
			s := box.Start(t, Options{Args: []string{"--models", "migrated=migrated.mar"}, Config: config})
			answer := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+"/predictions/migrated", []byte("abcd"), "Content-Type", octets)
			if string(answer.Body) != "4" {
				t.Errorf("the answer is %q", answer.Body)
			}
			if config == nil {
				return
			}
			refused := s.MustAsk(t, http.StatusInternalServerError, http.MethodPost, s.Management+"/models?url=needing.mar&initial_workers=1&synchronous=true", nil)
			if hint := refused.Header.Get("X-Flambeau-Hint"); !strings.Contains(hint, "torch") || strings.Contains(hint, "NoneType") {
				t.Errorf("the reason does not name torch: %q", hint)
			}
		})
	}
}
