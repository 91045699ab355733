package rollout

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// TestAloneIsAlone lets many take slots of instances that come and go, some of them alone, and some lose patience: who is alone shares with nobody, no
// instance has more than its slots, everybody gets his turn, and nothing is kept for anybody in the end.
func TestAloneIsAlone(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dice := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
				p := newPool(time.Minute)
				p.hope(1, firstGeneration)
				limits := map[backend.Instance]int{}
				var mu sync.Mutex // guards limits and running
				running := map[backend.Instance]int{}
				add := func() *member {
					slots := 1 + dice.IntN(4)
					i := backendtest.NewInstance("i")
					mu.Lock()
					limits[i] = slots
					mu.Unlock()
					return p.add(i, 1, slots, firstGeneration, terms{})
				}
				members := []*member{add(), add()}
				var served, left atomic.Int64
				var all sync.WaitGroup
				client := func(alone bool, patience, work time.Duration) {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					acquire := p.Acquire
					if alone {
						acquire = p.AcquireAlone
					}
					s, err := acquire(ctx)
					if err != nil {
						if left.Add(1); patience == time.Hour {
							t.Error("somebody did not get his turn within an hour")
						}
						return
					}
					own, _ := s.(*slot)
					mu.Lock()
					n := running[own.member.inst]
					if alone {
						running[own.member.inst] += 100
					} else {
						running[own.member.inst]++
					}
					limit := limits[own.member.inst]
					mu.Unlock()
					if alone && n > 0 || !alone && n >= limit {
						t.Errorf("alone %t: beside %d others, of %d slots", alone, n, limit)
					}
					<-time.After(work)
					mu.Lock()
					if running[own.member.inst]--; alone {
						running[own.member.inst] -= 99
					}
					mu.Unlock()
					s.Release()
					served.Add(1)
				}
				for range 300 {
					alone, patience, work := dice.IntN(4) == 0, time.Hour, time.Duration(1+dice.IntN(50))*time.Millisecond
					if dice.IntN(5) == 0 {
						patience = time.Duration(1+dice.IntN(40)) * time.Millisecond
					}
					all.Go(func() { client(alone, patience, work) })
					if dice.IntN(20) == 0 {
						at := dice.IntN(len(members))
						p.leave(members[at])
						members[at] = add()
					}
					<-time.After(time.Duration(dice.IntN(10)) * time.Millisecond)
				}
				all.Wait() // a bubble in which somebody waits for ever is a failure
				if served.Load()+left.Load() != 300 {
					t.Errorf("%d served, %d left", served.Load(), left.Load())
				}
				free := 0
				for _, m := range members {
					free += m.slots
					if m.used != 0 || m.reserved != nil {
						t.Errorf("%d of %d slots are used in the end, reserved %t", m.used, m.slots, m.reserved != nil)
					}
				}
				if use := p.usage(); p.Free() != free || use.slots != 0 {
					t.Errorf("%d of %d slots are free, %d in use", p.Free(), free, use.slots)
				}
			})
		})
	}
}
