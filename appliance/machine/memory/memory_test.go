package memory

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPlans(t *testing.T) {
	const GB = 1e9
	for _, c := range []struct {
		what   string
		ram    uint64
		engine uint64 // MiB
		tunnel uint64
	}{
		{"not known: as the smallest", 0, 208, 32},
		{"512 MB", 0.45 * GB, 208, 32},
		{"1 GB", 0.95 * GB, 320, 64},
		{"2 GB", 1.9 * GB, 512, 128},
		{"4 GB", 3.8 * GB, 1024, 128},
		{"8 GB", 7.8 * GB, 2048, 128},
		{"a server", 256 * GB, 2048, 128},
	} {
		p := For(c.ram)
		if p.Engine.Limit != c.engine*MiB || p.Tunnel != c.tunnel*MiB {
			t.Errorf("%s: engine %d MiB, tunnel %d MiB, want %d, %d", c.what, p.Engine.Limit/MiB, p.Tunnel/MiB, c.engine, c.tunnel)
		}
	}
}

// A machine with more RAM is never given less, and from 1 GB on what the limits
// allow in all leaves half of the RAM to pods and kernel.
func TestPlansGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Uint64Range(900*MiB, 1<<40).Draw(t, "ram")
		b := rapid.Uint64Range(a, 1<<41).Draw(t, "more")
		p, q := For(a), For(b)
		for _, pair := range [][2]uint64{
			{p.Supervisor.Limit, q.Supervisor.Limit}, {p.Engine.Limit, q.Engine.Limit}, {p.Containerd.Limit, q.Containerd.Limit}, {p.Tunnel, q.Tunnel},
			{uint64(p.Requests), uint64(q.Requests)}, {uint64(p.Engine.GC), uint64(q.Engine.GC)},
		} {
			if pair[0] > pair[1] {
				t.Fatalf("%d bytes: %+v, yet %d bytes: %+v", a, p, b, q)
			}
		}
		if sum := p.Supervisor.Limit + p.Engine.Limit + p.Containerd.Limit + p.Tunnel; sum > a*6/10 {
			t.Fatalf("%d of %d bytes", sum, a)
		}
	})
}

func TestEnvironKeepsWhatSomebodyDecided(t *testing.T) {
	s := Share{35, 48 * MiB}
	for _, c := range []struct{ env, want []string }{
		{nil, []string{"CONTAINERD_GOGC=35", "CONTAINERD_GOMEMLIMIT=48MiB"}},
		{[]string{"GOGC=off"}, []string{"GOGC=off", "CONTAINERD_GOMEMLIMIT=48MiB"}},
		{[]string{"CONTAINERD_GOMEMLIMIT=1GiB"}, []string{"CONTAINERD_GOMEMLIMIT=1GiB", "CONTAINERD_GOGC=35"}},
	} {
		if got := s.Environ(slices.Clone(c.env), "CONTAINERD_"); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.env, got, c.want)
		}
	}
}
