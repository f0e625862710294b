package doctor

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"rivulet/appliance/machine/host"
)

// However often it is done, the process stays in its own network namespace.
func TestTryLeavesTheNetworkAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	own := func() string {
		at, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	before := own()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			found, err := bundled(t.TempDir()).Try(t.Context())
			if err != nil || found[tryNetns] != nil || found[tryVeth] != nil {
				t.Errorf("%v %v", found, err)
			}
		})
	}
	// The first thread is taken by whoever is there; hold none of it back.
	for range 20 {
		wg.Go(func() {
			_ = host.OnThread(func() error {
				if unix.Gettid() == unix.Getpid() {
					t.Error("on the first thread")
				}
				return nil
			})
		})
	}
	wg.Wait()
	if after := own(); after != before {
		t.Errorf("now in %s, was in %s", after, before)
	}
}
