package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/offload/target"
)

const (
	// remember is how long a twin's name is used without a check. A provider's owner may change or delete the twin; the
	// next request repairs it.
	remember = 30 * time.Second
	// callTimeout bounds one request, release one check of a twin that is being deleted.
	callTimeout = 10 * time.Second
	release     = 500 * time.Millisecond
	maxAnswer   = 1 << 20
)

// Namespace ensures that home has a twin and returns its name. A cached name is returned at once; an old one is checked
// at the peer in the background, so that no pod waits for it. If the twin is gone, its users notice, and Twins drops
// the name.
func (t *Target) Namespace(ctx context.Context, home string) (string, error) {
	twin, one := t.remembered(home)
	switch {
	case twin.name == "":
	case time.Since(twin.at) < remember:
		return twin.name, nil
	default:
		select {
		case one <- struct{}{}:
			go func() {
				defer func() { <-one }()
				defer panics.To(func(err error) { t.cfg.Log.Error("a twin was not asked for", "namespace", home, "err", err) })
				ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
				defer cancel()
				_, _ = t.requestNamespace(ctx, home) // the next call repeats it
			}()
		default: // a request is under way
		}
		return twin.name, nil
	}
	select { // of concurrent calls one sends a request
	case one <- struct{}{}:
		defer func() { <-one }()
	case <-ctx.Done():
		return "", fmt.Errorf("offload: twin of namespace %s on %s: %w", home, t.cfg.Name, ctx.Err())
	}
	if twin, _ := t.remembered(home); twin.name != "" {
		return twin.name, nil
	}
	return t.requestNamespace(ctx, home)
}

// remembered is the cached twin, and the lock for requests for it.
func (t *Target) remembered(home string) (twin memory, one chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking[home] == nil {
		t.asking[home] = make(chan struct{}, 1)
	}
	return t.twins[home], t.asking[home]
}

func (t *Target) requestNamespace(ctx context.Context, home string) (string, error) {
	t.making.RLock()
	defer t.making.RUnlock()
	var answer struct{ Name string }
	if _, err := t.call(ctx, http.MethodPut, "/v1/namespaces/"+url.PathEscape(home), &answer); err != nil {
		return "", fmt.Errorf("offload: twin of namespace %s on %s: %w", home, t.cfg.Name, err)
	}
	if len(validation.IsDNS1123Label(answer.Name)) > 0 {
		return "", fmt.Errorf("offload: twin of namespace %s on %s: %w; upgrade it", home, t.cfg.Name, errNoName)
	}
	t.mu.Lock()
	t.twins[home] = memory{answer.Name, time.Now()}
	t.mu.Unlock()
	return answer.Name, nil
}

// Twins queries which twins the peer has for this home.
func (t *Target) Twins(ctx context.Context) (map[string]string, error) {
	answer, err := t.list(ctx)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for home := range t.twins {
		if _, ok := answer.Twins[home]; !ok {
			delete(t.twins, home)
		}
	}
	return answer.Twins, nil
}

var errNoName = errors.New("what the peer names is no namespace")

// twins is the answer to GET /v1/namespaces.
type twins struct {
	Twins map[string]string
	Going map[string]string // being deleted
}

func (t *Target) list(ctx context.Context) (answer twins, err error) {
	if _, err := t.call(ctx, http.MethodGet, "/v1/namespaces", &answer); err != nil {
		return twins{}, fmt.Errorf("offload: twins on %s: %w", t.cfg.Name, err)
	}
	for home, twin := range answer.Twins {
		if len(validation.IsDNS1123Label(home)) > 0 || len(validation.IsDNS1123Label(twin)) > 0 {
			return twins{}, fmt.Errorf("offload: twins on %s: %w; upgrade it", t.cfg.Name, errNoName)
		}
	}
	return answer, nil
}

// Gone reports whether the peer has no twin of home, not even one being deleted; none is made in the meantime.
func (t *Target) Gone(ctx context.Context, home string) (bool, error) {
	t.making.Lock()
	defer t.making.Unlock()
	answer, err := t.list(ctx)
	if err != nil {
		return false, err
	}
	_, there := answer.Twins[home]
	_, going := answer.Going[home]
	return !there && !going, nil
}

// Release deletes the twin at the peer, and returns when it is gone.
func (t *Target) Release(ctx context.Context, home string) error {
	path := "/v1/namespaces/" + url.PathEscape(home)
	for {
		t.mu.Lock()
		delete(t.twins, home)
		t.mu.Unlock()
		var going struct{ UID string }
		code, err := t.call(ctx, http.MethodDelete, path, &going)
		if going.UID != "" { // a new one with the same name must not be deleted
			path = "/v1/namespaces/" + url.PathEscape(home) + "?uid=" + url.QueryEscape(going.UID)
		}
		if code == http.StatusNotFound {
			return nil
		}
		if err != nil {
			return fmt.Errorf("offload: release twin of namespace %s on %s: %w", home, t.cfg.Name, err)
		}
		if !changes.Wait(ctx, release) {
			return fmt.Errorf("offload: release twin of namespace %s on %s: %w", home, t.cfg.Name, ctx.Err())
		}
	}
}

// call sends one request; an answer that is not 2xx is an error with its text.
func (t *Target) call(ctx context.Context, method, path string, answer any) (code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, t.cfg.BaseURL+path, nil)
	if err != nil {
		return 0, err
	}
	resp, err := t.cfg.HTTP.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return resp.StatusCode, err
	}
	if resp.StatusCode/100 != 2 {
		err := refusal(resp.StatusCode, body)
		if resp.StatusCode/100 == 4 && resp.StatusCode != http.StatusTooManyRequests {
			err = refused{err}
		}
		return resp.StatusCode, err
	}
	if answer == nil {
		return resp.StatusCode, nil
	}
	if err := decode(body, answer); err != nil {
		return resp.StatusCode, fmt.Errorf("the peer's answer is not understood, are the versions too far apart? %w", err)
	}
	return resp.StatusCode, nil
}

type refused struct{ error }

func (refused) Is(err error) bool { return err == target.ErrRefused }
func (r refused) Unwrap() error   { return r.error }
