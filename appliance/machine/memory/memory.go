// Package memory divides a board's RAM: the soft limit of each of Rivulet's processes, and the concurrency of the API
// server (docs/design/small.md). It also releases memory that only the start of a process needed. It reads its
// arguments and, in Trim, the process's memory map, and writes nothing. Failure: a process over its limit uses more
// CPU.
package memory

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

// MiB is the unit of the plan.
const MiB = 1 << 20

// Plan has the share of each process by the two rules of Go's garbage collector: GC is the garbage per live byte,
// percent; Limit, bytes, is where the collector starts to run as often as necessary.
type Plan struct {
	Supervisor, Engine, Containerd Share
	// Tunnel is the limit of the data plane, which consists of buffers.
	Tunnel uint64
	// Requests and Mutating bound the concurrent requests of the API server.
	Requests, Mutating int
}

// Share is one process's.
type Share struct {
	GC    int
	Limit uint64
}

// bands are by RAM as the machine reports it, which is less than the nominal size: a board of 1 GB has 900 to 1000 MB.
// A small board trades CPU for memory; a large one has the Go runtime's defaults, except for the supervisor and
// containerd, which have little to collect anywhere.
var bands = []struct {
	upTo uint64
	plan Plan
}{
	// A board of 512 MB: what all take while they work is below the 430 MiB that Linux has there (test/suites/tiny).
	{768 * MiB, Plan{Supervisor: Share{20, 32 * MiB}, Engine: Share{25, 208 * MiB}, Containerd: Share{25, 32 * MiB}, Tunnel: 32 * MiB, Requests: 50, Mutating: 25}},
	{1536 * MiB, Plan{Supervisor: Share{30, 48 * MiB}, Engine: Share{35, 320 * MiB}, Containerd: Share{35, 48 * MiB}, Tunnel: 64 * MiB, Requests: 100, Mutating: 50}},
	{3072 * MiB, Plan{Supervisor: Share{40, 64 * MiB}, Engine: Share{50, 512 * MiB}, Containerd: Share{50, 64 * MiB}, Tunnel: 128 * MiB, Requests: 200, Mutating: 100}},
	{6144 * MiB, Plan{Supervisor: Share{40, 128 * MiB}, Engine: Share{75, 1024 * MiB}, Containerd: Share{75, 128 * MiB}, Tunnel: 128 * MiB, Requests: 400, Mutating: 200}},
	{1 << 62, Plan{Supervisor: Share{40, 256 * MiB}, Engine: Share{100, 2048 * MiB}, Containerd: Share{100, 256 * MiB}, Tunnel: 128 * MiB, Requests: 400, Mutating: 200}},
}

// For returns the plan for that many bytes of RAM; 0 is unknown, and counts as small.
func For(ram uint64) Plan {
	for _, b := range bands {
		if ram <= b.upTo {
			return b.plan
		}
	}
	return bands[len(bands)-1].plan
}

// Environ adds a share to a process's environment, each name with the prefix. Existing values take precedence.
func (s Share) Environ(env []string, prefix string) []string {
	for _, kv := range []struct{ name, value string }{
		{"GOGC", fmt.Sprint(s.GC)},
		{"GOMEMLIMIT", fmt.Sprintf("%dMiB", s.Limit/MiB)},
	} {
		if !has(env, kv.name) && !has(env, prefix+kv.name) {
			env = append(env, prefix+kv.name+"="+kv.value)
		}
	}
	return env
}

// Apply sets a share for this process; values in its environment take precedence.
func (s Share) Apply() {
	env := os.Environ()
	if !has(env, "GOGC") {
		debug.SetGCPercent(s.GC)
	}
	if !has(env, "GOMEMLIMIT") {
		debug.SetMemoryLimit(int64(s.Limit))
	}
}

func has(env []string, name string) bool {
	for _, kv := range env {
		if strings.HasPrefix(kv, name+"=") {
			return true
		}
	}
	return false
}
