package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestLauncher starts, asks and stops a server from Python, as notebooks do with ts.launcher.
func TestLauncher(t *testing.T) {
	box := NewBox(t)
	box.Pack(t, "slim", "testdata/slim.py")
	ports := FreePorts(t, 5)
	settings := map[string]string{"default_workers_per_model": "1", "number_of_gpu": "0"}
	for i, key := range []string{"inference_address", "management_address", "metrics_address"} {
		settings[key] = fmt.Sprintf("http://127.0.0.1:%d", ports[i])
	}
	settings["grpc_inference_port"], settings["grpc_management_port"] = strconv.Itoa(ports[3]), strconv.Itoa(ports[4])
	script := fmt.Sprintf(`
import json, urllib.request
from ts import launcher
lines = launcher.start(model_store=%q, snapshot_file=%q, no_config_snapshots=True, disable_token=True, models="slim=slim.mar")
url = %q
with urllib.request.urlopen(urllib.request.Request(url + "/predictions/slim", data=b"x")) as answer:
    print("answer", json.load(answer)["loaded"])
launcher.stop()
list(iter(lambda: lines.get(timeout=60), None))
try:
    urllib.request.urlopen(url + "/ping")
except OSError:
    print("gone")
try:
    launcher.start(model_store="/nowhere")
except RuntimeError as err:
    print("refused", err)
`, box.Store, box.WriteConfig(t, settings), settings["inference_address"])
	file := filepath.Join(box.Dir, "script.py")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	out := box.Run(t, "python", file)
	for _, part := range []string{"Model server started.", "answer []", "gone\n", "refused the server did not start:", "/nowhere"} {
		if !strings.Contains(out, part) {
			t.Errorf("the script's output lacks %q:\n%s", part, out)
		}
	}
}
