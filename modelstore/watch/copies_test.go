package watch

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCopyInPieces is the reproduction O17: an archive is written over in 40 pieces, and never taken before it is whole.
func TestCopyInPieces(t *testing.T) {
	v1 := map[string][]byte{"m.mar": zipOf(t, 1, 90_000), "m.tgz": tarOf(t, 1, 90_000), "m.onnx": onnxOf(90_000)}
	v2 := map[string][]byte{"m.mar": zipOf(t, 2, 120_000), "m.tgz": tarOf(t, 2, 120_000), "m.onnx": onnxOf(120_000)}
	steady := func(int) time.Duration { return 100 * time.Millisecond }
	stopping := func(i int) time.Duration {
		if i == 19 {
			return 5 * time.Second
		}
		return 100 * time.Millisecond
	}
	for name := range v1 {
		for pauses, pause := range map[string]func(int) time.Duration{"steady": steady, "stopping": stopping, "slow": func(int) time.Duration { return time.Second }} {
			for _, told := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s %s told=%v", name, pauses, told), func(t *testing.T) {
					bubble(t, func(b *bench) {
						if !told {
							b.notes.hint = nil // all is found by polling
							b.opts.Poll = 500 * time.Millisecond
						}
						b.put(name, v1[name])
					}, func(b *bench) {
						b.wait(3 * time.Second)
						b.pieces(b.open(name, os.O_TRUNC), v2[name], 40, pause)
						b.wait(3 * time.Second)
						b.wantForms(name, v1[name], v2[name])
					})
				})
			}
		}
	}
}

// TestWrittenOverInPlace is TestCopyInPieces as rsync --inplace does it: the end of the old file, with its directory, stays there until the last piece.
func TestWrittenOverInPlace(t *testing.T) {
	for _, name := range []string{"m.mar", "m.tgz"} {
		t.Run(name, func(t *testing.T) {
			pack := map[string]func(testing.TB, uint64, int) []byte{"m.mar": zipOf, "m.tgz": tarOf}[name]
			v1, v2 := pack(t, 1, 100_000), pack(t, 2, 100_000)
			bubble(t, func(b *bench) { b.put(name, v1) }, func(b *bench) {
				b.wait(3 * time.Second)
				seen := len(b.snaps())
				b.pieces(b.open(name, 0), v2, 40, func(i int) time.Duration {
					if i < 39 {
						for _, snap := range b.snaps()[seen:] {
							if e := snap.Entries[0]; e.State == Settled {
								t.Errorf("settled after piece %d: %+v", i, e)
							}
						}
					}
					seen = len(b.snaps())
					if i == 19 {
						return 5 * time.Second
					}
					return 300 * time.Millisecond // longer than it takes to settle
				})
				b.wait(3 * time.Second)
				if e := b.entry(name); e.State != Settled || len(b.forms(name)) != 2 {
					t.Errorf("at last: %+v, settled %d times", e, len(b.forms(name)))
				}
			})
		})
	}
}

// TestFilledFromTheEnd is a download in parts, the last of which comes first: the file has its size and its directory before its content.
func TestFilledFromTheEnd(t *testing.T) {
	text := zipOf(t, 1, 1<<20)
	bubble(t, nil, func(b *bench) {
		file := b.open("m.mar", os.O_CREATE)
		for _, part := range []int{7, 0, 3, 1, 2, 4, 6, 5} {
			from := len(text) * part / 8
			to := len(text) * (part + 1) / 8
			if _, err := file.WriteAt(text[from:to], int64(from)); err != nil {
				t.Fatal(err)
			}
			b.hint()
			if part != 5 {
				b.wait(2 * time.Second)
				if e := b.entry("m.mar"); e.State == Settled {
					t.Errorf("settled after part %d: %+v", part, e)
				}
			}
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		b.wait(2 * time.Second)
		b.wantForms("m.mar", text)
	})
}

func TestLongWriteIsOneSettledSnapshot(t *testing.T) {
	// As 200 MB at 10 MB/s, with fewer bytes.
	text := zipOf(t, 1, 200_000)
	bubble(t, nil, func(b *bench) {
		b.pieces(b.open("m.mar", os.O_CREATE), text, 200, func(int) time.Duration { return 100 * time.Millisecond })
		b.wait(time.Second)
		b.wantForms("m.mar", text)
		if n := len(b.snaps()); n < 18 || n > 26 {
			t.Errorf("%d snapshots in 20 seconds, one a second was wanted", n)
		}
		for i, snap := range b.snaps()[1 : len(b.snaps())-1] {
			if e := snap.Entries[0]; e.State != Changing || i > 0 && !strings.HasPrefix(e.Reason, "it is still growing: ") {
				t.Errorf("snapshot %d: %+v", i, e)
			}
		}
	})
}

func TestFiftyChangesInOneSecond(t *testing.T) {
	for _, settle := range []time.Duration{20 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%v %d", settle, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // only to spread the changes
				bubble(t, func(b *bench) {
					b.opts.Settle = settle
					b.put("m.mar", zipOf(t, 1, 100))
				}, func(b *bench) {
					b.wait(10 * time.Second)
					before := len(b.forms("m.mar"))
					var at []time.Duration
					for i := range 50 {
						if seed == 0 {
							at = append(at, time.Duration(i)*20*time.Millisecond)
						} else { // a few bursts
							at = append(at, time.Duration(r.IntN(int(seed)))*time.Second/time.Duration(seed)+time.Duration(r.IntN(10))*time.Millisecond)
						}
					}
					slices.Sort(at)
					began := time.Now()
					for i, when := range at {
						b.wait(time.Until(began.Add(when)))
						write(t, b.store+"/.new", zipOf(t, 1, 200+i))
						rename(t, b.store+"/.new", b.store+"/m.mar")
						b.hint()
					}
					b.wait(10 * time.Second)
					most := 2
					if settle < 200*time.Millisecond {
						most = 8 // for whoever asks for it
					}
					forms := b.forms("m.mar")[before:]
					if len(forms) == 0 || len(forms) > most || forms[len(forms)-1] != int64(len(zipOf(t, 1, 249))) {
						t.Errorf("settled as %v; changed at %v", forms, at)
					}
				})
			})
		}
	}
}
