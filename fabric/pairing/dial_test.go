package pairing

import (
	"crypto/ed25519"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"rivulet/fabric/rpc"
)

// Addresses at which nothing answers are dialled beside each other, a few at once, and all end with the loop.
func TestDeadAddressesAreDialledBesideEachOther(t *testing.T) {
	t.Parallel()
	id, err := rpc.NewIdentity(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), "a")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open, most, all int
	closed := make(chan struct{}, 64)
	var addrs []netip.AddrPort
	for range 2 * maxDials {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		addrs = append(addrs, netip.MustParseAddrPort(l.Addr().String()))
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				mu.Lock()
				open, all = open+1, all+1
				most = max(most, open)
				mu.Unlock()
				go func() {
					buf := make([]byte, 4096)
					for {
						if _, err := c.Read(buf); err != nil {
							break
						}
					}
					c.Close()
					mu.Lock()
					open--
					mu.Unlock()
					closed <- struct{}{}
				}()
			}
		}()
	}
	begun := time.Now()
	n := 0
	for d := range DialEach(t.Context(), id, "abcdefghijklmnopqrstuvwxyz234567", addrs) {
		if d.Err == nil {
			t.Error("nobody has proved to be the cluster")
		}
		if n++; n == maxDials {
			break
		}
	}
	took := time.Since(begun)
	mu.Lock()
	want := all
	mu.Unlock()
	for range want {
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Fatal("a connection stays open")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if most > maxDials+1 || most < 2 || took >= maxDials*postTimeout {
		t.Errorf("%d at once, %d in all, %s for %d", most, all, took, maxDials)
	}
}
