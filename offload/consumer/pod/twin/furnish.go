package twin

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/changes"
	"rivulet/offload/homeapi"
	"rivulet/offload/target"
)

// The pause between two checks of a twin that is being filled: a tenth of the time so far, within these bounds.
const firstLook, lastLook = 20 * time.Millisecond, time.Second

// unusual is after how long the reason is shown on pods, worrying after how long it is logged.
const unusual, worrying = 5 * time.Second, time.Minute

// authorityPatience is how long to wait for home's authority: a namespace may have none.
const authorityPatience = 10 * time.Second

// lack is why a twin is not ready for its first pod; the error is nil while the delay is usual.
type lack struct{ err error }

func (l *lack) Error() string {
	if l == nil || l.err == nil {
		return ""
	}
	return l.err.Error()
}

// furnish waits until the twin has what reflection makes for every pod there: the way to home's API server, and home's
// authority. Its user is told when it is complete, and when missing objects are to be reported.
func (t *Twin) furnish(ctx context.Context, cfg Config) {
	begun, worried := time.Now(), false
	for {
		err := t.furnished(ctx, cfg.NoHomeAPI, time.Since(begun) > authorityPatience)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			t.bare.Store(nil)
			cfg.User.Changed("")
			return
		}
		if why := t.bare.Load(); time.Since(begun) > unusual && why.Error() != err.Error() {
			t.bare.Store(&lack{err})
			cfg.User.Changed("")
		}
		if !worried && time.Since(begun) > worrying {
			worried = true
			cfg.Log.Warn("no pod is sent yet: the twin lacks what pods there need", "namespace", t.Home, "err", err)
		}
		if !changes.Wait(ctx, min(max(time.Since(begun)/10, firstLook), lastLook)) {
			return
		}
	}
}

func (t *Twin) furnished(ctx context.Context, noHomeAPI, noAuthority bool) error {
	if !noHomeAPI {
		if _, err := t.HomeAPI(ctx); err != nil {
			return err
		}
		if _, err := t.client.CoreV1().ConfigMaps(t.Name).Get(ctx, homeapi.Variables, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("offload: the variables of home's API server: %w", err)
		}
	}
	_, err := t.client.CoreV1().ConfigMaps(t.Name).Get(ctx, homeapi.Authority, metav1.GetOptions{})
	if err != nil && !(noAuthority && apierrors.IsNotFound(err)) {
		return fmt.Errorf("offload: the authority of home's API server: %w", err)
	}
	return nil
}

// Lacks reports whether the twin is not ready for its first pod, and why if the delay is unusual.
func (t *Twin) Lacks() (not bool, why error) {
	l := t.bare.Load()
	if l == nil {
		return false, nil
	}
	if l.err == nil {
		return true, nil
	}
	return true, errors.Join(target.ErrNotYet, l.err)
}
