package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/changes"
	"rivulet/offload/homeapi"
)

// The twin of a namespace is made and watched when the namespace is offloaded, not with its first pod. Earlier pods
// wait at home, Pending, until
//
// 	its twin has its quota and this cluster its rights   Target.Namespace returns then
// 	the watches of the twin are complete
// 	reflection has made what every pod there needs       furnish
//
// so that no pod is refused, or started without its mounts, because it came too early.

const (
	// preparers is how many twins of one target are requested concurrently.
	preparers = 4
	// The pause between two checks of a twin that is being filled: a tenth of the time so far, within these bounds.
	firstLook, lastLook = 20 * time.Millisecond, time.Second
	// unusual is after how long the reason is shown on pods, worrying after how long it is logged.
	unusual, worrying = 5 * time.Second, time.Minute
	// authorityPatience is how long to wait for home's authority: a namespace may have none.
	authorityPatience = 10 * time.Second
)

// Prepare makes and watches the twin of a namespace, if it is offloaded. It does not block, and may be called at any
// time, repeatedly, before Run as well.
func (c *Controller) Prepare(namespace string) {
	if c.twins.get(namespace) == nil {
		c.ahead.Add(namespace)
	}
}

// prepareTwin carries out Prepare. It logs no failures, since reflection requests the same twin and logs them.
func (c *Controller) prepareTwin(ctx context.Context, namespace string) {
	if c.twins.get(namespace) != nil || !c.cfg.Offloaded(namespace) {
		c.ahead.Forget(namespace)
		return
	}
	bounded, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	name, err := c.cfg.Target.Namespace(bounded, namespace)
	if err != nil {
		c.ahead.AddRateLimited(namespace)
		return
	}
	c.ahead.Forget(namespace)
	c.watch(namespace, name)
}

// furnish waits until the twin has what reflection makes for every pod there: the way to home's API server, and home's
// authority. changed is called when it is complete, and when missing objects are to be reported.
func (t *twin) furnish(ctx context.Context, noHomeAPI bool, changed func(), worry func(error)) {
	begun, worried := time.Now(), false
	for {
		err := t.furnished(ctx, noHomeAPI, time.Since(begun) > authorityPatience)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			t.bare.Store(nil)
			changed()
			return
		}
		if why := t.bare.Load(); time.Since(begun) > unusual && why.Error() != err.Error() {
			t.bare.Store(&lack{err})
			changed()
		}
		if !worried && time.Since(begun) > worrying {
			worried = true
			worry(err)
		}
		if !changes.Wait(ctx, min(max(time.Since(begun)/10, firstLook), lastLook)) {
			return
		}
	}
}

func (t *twin) furnished(ctx context.Context, noHomeAPI, noAuthority bool) error {
	if !noHomeAPI {
		if _, err := t.homeAPI(ctx); err != nil {
			return err
		}
		if _, err := t.client.CoreV1().ConfigMaps(t.name).Get(ctx, homeapi.Variables, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("offload: the variables of home's API server: %w", err)
		}
	}
	_, err := t.client.CoreV1().ConfigMaps(t.name).Get(ctx, homeapi.Authority, metav1.GetOptions{})
	if err != nil && !(noAuthority && apierrors.IsNotFound(err)) {
		return fmt.Errorf("offload: the authority of home's API server: %w", err)
	}
	return nil
}

// lack is why a twin is not ready for its first pod; the error is nil while the delay is usual.
type lack struct{ err error }

func (l *lack) Error() string {
	if l == nil || l.err == nil {
		return ""
	}
	return l.err.Error()
}

// lacks reports whether the twin is not ready for its first pod, and why if the delay is unusual.
func (t *twin) lacks() (not bool, why error) {
	l := t.bare.Load()
	if l == nil {
		return false, nil
	}
	if l.err == nil {
		return true, nil
	}
	return true, errors.Join(errNotYet, l.err)
}
