package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhyAModelDoesNotLoad registers broken archives, and looks for the user's line, the reason and what to do in everything that tells about
// them: the answer, the description, the commands, the log.
func TestWhyAModelDoesNotLoad(t *testing.T) {
	box := NewBox(t)
	s := box.Start(t, Options{})
	for name, tc := range map[string]struct {
		handler, entry, query string
		says                  []string
		traceback             string // a line of the log
	}{
		"missing-module": {
			"import os\n\nimport cv2_is_not_here_zz.sub\n", "", "",
			[]string{"ModuleNotFoundError: No module named 'cv2_is_not_here_zz' (handler.py:3)", "--extra-files", "install_py_dep_per_model=true"},
			"    import cv2_is_not_here_zz.sub",
		},
		"pip-name": {
			"import slugify\n", "", "",
			[]string{"No module named 'slugify' (handler.py:1)", "pip package python-slugify"},
			"ModuleNotFoundError: No module named 'slugify'",
		},
		"wrong-class": {
			"class Model:\n    def initialize(self, context):\n        pass\n", ":Other", "",
			[]string{"there is no 'Other' in handler, class Model is used", "Expect handle method in class"},
			"Expect handle method in class <class 'handler.Model'>",
		},
		"missing-handler": {
			"def handle(data, context):\n    return data\n", "", "&handler=elsewhere.py",
			[]string{"handler 'elsewhere.py': there is no module 'elsewhere'", "the archive's Python files are handler.py"},
			"there is no module 'elsewhere'",
		},
		"missing-weights": {
			"def load(path):\n    return open(path)\n\n\ndef handle(data, context):\n    load('weights.bin')\n", "", "",
			[]string{"No such file or directory: 'weights.bin' (handler.py:2)", "it has handler.py, notes.txt", "--serialized-file"},
			"    load('weights.bin')",
		},
		"raises": {
			"def handle(data, context):\n    raise ValueError('the labels are for another model')\n", "", "",
			[]string{"ValueError: the labels are for another model (handler.py:2)"},
			"    raise ValueError('the labels are for another model')",
		},
	} {
		t.Run(name, func(t *testing.T) {
			box.packWith(t, name, tc.handler, tc.entry, "--extra-files", "notes\n")
			url := s.Management + "/models?url=" + name + ".mar&initial_workers=1" + tc.query
			answer := s.MustAsk(t, http.StatusInternalServerError, http.MethodPost, url, nil)
			requireTexts(t, "the answer's header", answer.Header.Get("X-Flambeau-Hint"), tc.says)
			var body map[string]any
			if err := json.Unmarshal(answer.Body, &body); err != nil || len(body) != 3 || body["message"] != "Failed to start workers for model "+name+" version: 1.0" {
				t.Errorf("the answer is not TorchServe's: %s", answer.Body)
			}
			if got := answer.Header.Get("X-Flambeau-Reason"); got != "load_failed" {
				t.Errorf("reason %q", got)
			}
			s.MustAsk(t, http.StatusNotFound, http.MethodGet, s.Management+"/models/"+name, nil)

			s.MustAsk(t, http.StatusAccepted, http.MethodPost, url+"&synchronous=false", nil)
			defer s.MustAsk(t, http.StatusOK, http.MethodDelete, s.Management+"/models/"+name, nil)
			var described []struct {
				State, Reason string
				Default       bool
				Workers       []struct {
					State, Reason string
					Restarts      int
				}
			}
			if !Eventually(startLimit, func() bool {
				answer := s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/"+name+"?details=true", nil)
				return json.Unmarshal(answer.Body, &described) == nil && described[0].State == "failed" && len(described[0].Workers) == 1 &&
					described[0].Workers[0].Restarts > 0 && described[0].Workers[0].State == "waiting"
			}) {
				t.Fatalf("described as %+v", described)
			}
			requireTexts(t, "the description", described[0].Reason, tc.says)
			requireTexts(t, "the worker's description", described[0].Workers[0].Reason, tc.says)
			requireTexts(t, "flambeau show", box.Run(t, "flambeau", "show", name, "--url", s.Management), tc.says)
			requireTexts(t, "flambeau ps", box.Run(t, "flambeau", "ps", "--url", s.Management), tc.says)
			log, err := os.ReadFile(filepath.Join(box.Dir, "logs", "model_log.log"))
			if err != nil {
				t.Fatal(err)
			}
			requireTexts(t, "the model log", string(log), []string{tc.traceback, "model " + name + " could not be loaded"})
		})
	}
}

func requireTexts(t *testing.T, what, text string, parts []string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s does not say %q:\n%s", what, part, text)
		}
	}
}
