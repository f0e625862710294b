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

// The twin of a namespace is made and watched when the namespace is offloaded, not when its
// first pod comes. A pod that comes earlier waits at home, Pending, until
//
//	its twin has its quota and this cluster its rights   Target.Namespace returns then
//	the watches of the twin show what is there
//	reflection has made what every pod there needs       furnish
//
// so that the provider never refuses a pod, or starts it without what it mounts, for coming
// too early.

const (
	// preparers is how many twins of one target are asked for at once.
	preparers = 4
	// Pauses between two looks at a twin that reflection is filling: of a tenth of the time
	// that it has taken so far.
	firstLook, lastLook = 20 * time.Millisecond, time.Second
	// unusual is how long that may take before pods say what they wait for, worrying before
	// the log does.
	unusual, worrying = 5 * time.Second, time.Minute
	// authorityPatience is how long home's authority is waited for: a namespace may have none.
	authorityPatience = 10 * time.Second
)

// Prepare has the twin of a namespace made and watched, if it is offloaded. It does not block,
// and may be called again at any time, before Run too.
func (c *Controller) Prepare(namespace string) {
	if c.twins.get(namespace) == nil {
		c.ahead.Add(namespace)
	}
}

// prepareTwin does what Prepare asks for. What keeps a twin from being made is in the log of
// reflection, which asks for it as well.
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

// furnish waits until the twin has what reflection makes for every pod there: the way to
// home's API server, and home's authority. changed is called when it has, and when what is
// missing is to be told.
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

// lack is why a twin is not ready for its first pod; the error is nil while that is not
// worth telling.
type lack struct{ err error }

func (l *lack) Error() string {
	if l == nil || l.err == nil {
		return ""
	}
	return l.err.Error()
}

// lacks reports whether the twin is not ready for its first pod, and why if that is worth
// telling.
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
