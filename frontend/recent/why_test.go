package recent

import (
	"testing"
	"time"
)

func TestWhy(t *testing.T) {
	const ms = time.Millisecond
	one := &Batch{Number: 12, Requests: []string{"a"}, Worker: 9000, Ran: 310 * ms}
	four := &Batch{Number: 13, Requests: []string{"a", "b", "c", "d"}, Worker: 9001, Ran: 20 * ms}
	for want, r := range map[string]Request{
		"queue 300ms behind batch 12 (1 request, 310ms in worker 9000)": {Waited: 300 * ms, Ran: 20 * ms, Batch: four, Behind: one},
		"queue 1.5s behind batch 13 (4 requests, 20ms in worker 9001)":  {Waited: 1500 * ms, Batch: one, Behind: four},
		"queue 5ms until a worker was ready":                            {Waited: 5 * ms, Batch: one},
		"queue 5ms, and no worker took it":                              {Waited: 5 * ms},
		"batch 100ms of waiting for others, until there were 4":         {Gathered: 100 * ms, Ran: 20 * ms, Batch: four},
		"worker 9001 took 12.3s for the batch of 4":                     {Ran: 12345 * ms, Batch: four},
		"worker 9000 took 20.1ms":                                       {Ran: 20120 * time.Microsecond, Batch: one},
		"nothing took long":                                             {Ran: 900 * time.Microsecond, Batch: one},
	} {
		if got := r.Why(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
