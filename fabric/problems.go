package fabric

import (
	"log/slog"
	"slices"
	"strings"
	"sync"

	"rivulet/fabric/changes"
	"rivulet/fabric/rpc"
)

// problems are the failures of the fabric as a whole, by part. Its lock is a leaf.
type problems struct {
	log     *slog.Logger
	changed *changes.Signal

	mu   sync.Mutex
	open map[string]rpc.Error
}

// Problems returns the failures of the fabric as a whole, with cures.
func (p *problems) Problems() []rpc.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []rpc.Error
	for _, e := range p.open {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b rpc.Error) int { return strings.Compare(a.Code, b.Code) })
	return out
}

// report sets the problem of one part; nil clears it. It logs changes.
func (p *problems) report(code string, e *rpc.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, had := p.open[code]
	switch {
	case e == nil && had:
		delete(p.open, code)
		p.log.Info("works again", "part", code)
	case e != nil && (!had || old != *e):
		p.open[code] = *e
		p.log.Error(e.Message, "part", code, "cure", e.Cure)
	default:
		return
	}
	p.changed.Notify()
}
