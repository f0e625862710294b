package dns

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"rivulet/offload/nodeagent/podnet"
)

// local knows the namespaces of this device's pods by what the container network has
// made, which is there before a pod's first process: the API server hears of addresses a
// second later, and of the end of a pod perhaps after another one has its address.
type local struct {
	results string

	mu   sync.Mutex
	of   map[netip.Addr]podName
	read time.Time
}

// reread is the least time between two looks at the results for clients that are not
// known.
const reread = 20 * time.Millisecond

// run follows the results until ctx ends.
func (l *local) run(ctx context.Context) {
	if l.results == "" {
		return
	}
	files, err := podnet.NewWatch(l.results)
	if err != nil {
		return // each new client is looked for by itself then
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
		case <-time.After(reread): // pods come in crowds
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

// refresh reads the results; mu is held. What cannot be read leaves what was known.
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

// pod is the one at the address, if it runs here.
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
