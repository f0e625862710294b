package consumer

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/fit"
)

// unfit makes admission keep pods with the image off the architecture, and reports whether that is in effect.
func (c *Consumer) unfit(ctx context.Context, namespace, image, arch string) (bool, error) {
	m := fit.New(c.home, c.cfg.Log)
	kept, err := m.Keeps(ctx, namespace, image, arch)
	if kept {
		return true, nil
	}
	return false, errors.Join(err, m.Learn(ctx, image, arch, time.Now()))
}

// unwelcome makes admission keep pods of an owner off the target, and reports whether that is in effect.
func (c *Consumer) unwelcome(target string) func(context.Context, string, metav1.OwnerReference) (bool, error) {
	m := fit.New(c.home, c.cfg.Log)
	return func(ctx context.Context, namespace string, owner metav1.OwnerReference) (bool, error) {
		kept, err := m.KeepsOwner(ctx, namespace, owner, target)
		if kept {
			return true, nil
		}
		return false, errors.Join(err, m.LearnOwner(ctx, owner.UID, target, time.Now()))
	}
}

// fitImages expires entries about images and adds those of home's own images.
func (c *Consumer) fitImages(ctx context.Context) error {
	m := fit.New(c.home, c.cfg.Log.With("part", "images"))
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.cfg.Images != nil {
		wg.Go(func() {
			defer panics.To(func(err error) { c.cfg.Log.Error("platforms of images are not foreseen any more", "err", err) })
			_ = m.Foresee(ctx, runtime.GOARCH, c.architectures, c.cfg.Images) // it ends with ctx
		})
	}
	return m.Run(ctx)
}
