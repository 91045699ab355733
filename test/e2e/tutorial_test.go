package e2e

import (
	"fmt"
	"strconv"
	"testing"
)

// TestTutorial runs a tutorial's script unchanged against the wheel. Only the ports are moved, by TS_CONFIG_FILE, so that it
// does not meet what else listens on this machine.
func TestTutorial(t *testing.T) {
	box := NewBox(t)
	ports := FreePorts(t, 5)
	inference := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	config := box.WriteConfig(t, map[string]string{
		"inference_address":    inference,
		"management_address":   fmt.Sprintf("http://127.0.0.1:%d", ports[1]),
		"metrics_address":      fmt.Sprintf("http://127.0.0.1:%d", ports[2]),
		"grpc_inference_port":  strconv.Itoa(ports[3]),
		"grpc_management_port": strconv.Itoa(ports[4]),
	})
	cmd := box.Command(t.Context(), absolute(t, "../tutorial/tutorial.sh"), inference)
	cmd.Env = append(cmd.Env, "TS_CONFIG_FILE="+config)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("tutorial.sh: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	box.RequireNothingLeft(t)
}
