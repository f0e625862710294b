package offload

import (
	"context"
	"errors"
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

// forgetImages keeps what is known of images young.
func (o *Offload) forgetImages(ctx context.Context) error {
	return fit.New(o.home, o.cfg.Log.With("part", "images")).Run(ctx)
}
