package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// remember is how long a twin's name is believed. A provider may delete a twin;
	// asking again makes it anew.
	remember = 30 * time.Second
	// callTimeout bounds one request, release one look at a twin that is going.
	callTimeout = 10 * time.Second
	release     = 500 * time.Millisecond
	maxAnswer   = 1 << 20
)

// Namespace makes sure that home has a twin and returns its name.
func (t *Target) Namespace(ctx context.Context, home string) (string, error) {
	t.mu.Lock()
	known, ok := t.twins[home]
	t.mu.Unlock()
	if ok && time.Since(known.at) < remember {
		return known.name, nil
	}
	var answer struct{ Name string }
	if _, err := t.call(ctx, http.MethodPut, "/v1/namespaces/"+url.PathEscape(home), &answer); err != nil {
		return "", fmt.Errorf("offload: twin of namespace %s on %s: %w", home, t.cfg.Name, err)
	}
	if answer.Name == "" {
		return "", fmt.Errorf("offload: twin of namespace %s on %s: the peer gave no name; upgrade it", home, t.cfg.Name)
	}
	t.mu.Lock()
	t.twins[home] = memory{answer.Name, time.Now()}
	t.mu.Unlock()
	return answer.Name, nil
}

// Twins asks the peer which twins it holds for this home.
func (t *Target) Twins(ctx context.Context) (map[string]string, error) {
	var answer struct{ Twins map[string]string }
	if _, err := t.call(ctx, http.MethodGet, "/v1/namespaces", &answer); err != nil {
		return nil, fmt.Errorf("offload: twins on %s: %w", t.cfg.Name, err)
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

// Release has the peer delete the twin, and returns when it is gone.
func (t *Target) Release(ctx context.Context, home string) error {
	path := "/v1/namespaces/" + url.PathEscape(home)
	for {
		t.mu.Lock()
		delete(t.twins, home)
		t.mu.Unlock()
		var going struct{ UID string }
		code, err := t.call(ctx, http.MethodDelete, path, &going)
		if going.UID != "" { // another one by the same name is not ours to delete
			path = "/v1/namespaces/" + url.PathEscape(home) + "?uid=" + url.QueryEscape(going.UID)
		}
		if code == http.StatusNotFound {
			return nil
		}
		if err != nil {
			return fmt.Errorf("offload: release twin of namespace %s on %s: %w", home, t.cfg.Name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("offload: release twin of namespace %s on %s: %w", home, t.cfg.Name, ctx.Err())
		case <-time.After(release):
		}
	}
}

// call makes one request; an answer that is not 2xx is an error with its text.
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
		return resp.StatusCode, fmt.Errorf("the peer answers %s: %s", resp.Status, firstLine(body))
	}
	if answer == nil {
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return resp.StatusCode, fmt.Errorf("the peer's answer is not understood, are the versions too far apart? %w", err)
	}
	return resp.StatusCode, nil
}

func firstLine(body []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	if len(line) > 300 {
		line = line[:300]
	}
	return line
}
