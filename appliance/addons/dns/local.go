package dns

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"rivulet/offload/nodeagent/podnet"
)

// local maps this device's pods to namespaces by the container network's results, which exist before a pod's first
// process. The API server learns addresses 1 s later, and the end of a pod perhaps after another one has its address.
type local struct {
	results string

	mu   sync.Mutex
	of   map[netip.Addr]podName
	read time.Time
}

// reread is the shortest interval between two reads of the results for unknown clients.
const reread = 20 * time.Millisecond

// run follows the results until ctx ends.
func (l *local) run(ctx context.Context) {
	if l.results == "" {
		return
	}
	files, err := podnet.NewWatch(l.results)
	if err != nil {
		return // then each new client causes a read
	}
	defer files.Close()
	tick := time.NewTicker(15 * time.Second)
	defer tick.Stop()
	for {
		files.Check()
		l.mu.Lock()
		l.refresh()
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(reread): // many pods may start at once
		}
		select {
		case <-ctx.Done():
			return
		case _, ok := <-files.Events():
			if !ok {
				return
			}
		case <-files.Errors():
		case <-tick.C:
		}
	}
}

// refresh reads the results; the caller holds mu. Unreadable results leave the known ones.
func (l *local) refresh() {
	pods, err := podnet.Read(l.results, podnet.Exists)
	l.read = time.Now()
	if err != nil {
		return
	}
	l.of = make(map[netip.Addr]podName, len(pods))
	for _, p := range pods {
		l.of[p.Addr] = podName{p.Namespace, p.Name}
	}
}

// pod returns the pod with the address, if it runs here.
func (l *local) pod(client netip.Addr) (podName, bool) {
	if l == nil || l.results == "" {
		return podName{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.of[client]
	if !ok && time.Since(l.read) > reread {
		l.refresh()
		p, ok = l.of[client]
	}
	return p, ok
}
