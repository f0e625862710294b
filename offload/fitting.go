package offload

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"rivulet/offload/fit"
)

// unfit has pods with the image kept off the architecture, and reports whether they are.
func (o *Offload) unfit(ctx context.Context, namespace, image, arch string) (bool, error) {
	m := fit.New(o.home, o.cfg.Log)
	kept, err := m.Keeps(ctx, namespace, image, arch)
	if kept {
		return true, nil
	}
	return false, errors.Join(err, m.Learn(ctx, image, arch, time.Now()))
}

// fitImages keeps what is known of images young, and learns what home knows of them.
func (o *Offload) fitImages(ctx context.Context) error {
	m := fit.New(o.home, o.cfg.Log.With("part", "images"))
	var wg sync.WaitGroup
	defer wg.Wait()
	if o.cfg.Images != nil {
		wg.Go(func() { _ = m.Foresee(ctx, runtime.GOARCH, o.architectures, o.cfg.Images) }) // it ends with ctx
	}
	return m.Run(ctx)
}

// architectures are those of the virtual nodes.
func (o *Offload) architectures() (out []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.stacks {
		for p := range s.branches {
			if p.OS == "linux" && !slices.Contains(out, p.Architecture) {
				out = append(out, p.Architecture)
			}
		}
	}
	return out
}
