package main

import "testing"

// TestRoomForGarbage: little that lives leaves room for requests, and much is never multiplied.
func TestRoomForGarbage(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 800, 1 << 20: 800, 4 << 20: 800, 16 << 20: 200, 32 << 20: 100, 4 << 30: 100} {
		if got := garbagePercent(live); got != want {
			t.Errorf("with %d bytes: %d, want %d", live, got, want)
		}
		if grown := live * uint64(garbagePercent(live)) / 100; grown > max(live, 32<<20) {
			t.Errorf("with %d bytes, %d more are left as garbage", live, grown)
		}
	}
}
