package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"time"

	"rivulet/fabric/cure"
	"rivulet/systemd"
)

// ErrNotRunning is in the error if there is no supervisor.
var ErrNotRunning = errors.New("rivulet is not running here")

// Start is the command to start the supervisor.
func Start() string {
	if _, err := os.Stat(systemd.UnitPath); err == nil {
		return "start it with: sudo systemctl start rivulet; why it has ended: sudo journalctl -n 50 -u rivulet"
	}
	return "start it with: sudo rivulet run"
}

// forbidden is an error of fs.ErrPermission with its own text.
type forbidden string

func (f forbidden) Error() string   { return string(f) }
func (forbidden) Is(err error) bool { return err == fs.ErrPermission }

// callTimeout bounds a Call; a stream (Do) is bounded by its context only.
const callTimeout = 10 * time.Second

// Get requests the supervisor's status.
func Get(ctx context.Context, runDir string) (st Status, err error) {
	return st, Call(ctx, runDir, http.MethodGet, "/v1/status", nil, &st)
}

// Call sends in as JSON (nil: no body) and decodes the answer into out (nil: ignored). It returns an error of the
// supervisor with its text.
func Call(ctx context.Context, runDir, method, path string, in, out any) error {
	return CallWithin(ctx, callTimeout, runDir, method, path, in, out)
}

// CallWithin is Call with another time limit.
func CallWithin(ctx context.Context, limit time.Duration, runDir, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	resp, err := Do(ctx, runDir, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("the supervisor's answer is unreadable: %w; are the command and the running rivulet of the same version?", err)
	}
	return nil
}

// Client calls the supervisor whose socket is in a folder. The deadline of the context bounds a call; without one it
// ends after callTimeout.
type Client struct{ RunDir string }

// Call is the function Call.
func (c Client) Call(ctx context.Context, method, path string, in, out any) error {
	if at, ok := ctx.Deadline(); ok {
		return CallWithin(ctx, time.Until(at), c.RunDir, method, path, in, out)
	}
	return Call(ctx, c.RunDir, method, path, in, out)
}

// Do sends a request to the supervisor and returns its answer, for streams; the caller closes the body. Any status but
// 2xx is an error.
func Do(ctx context.Context, runDir, method, path string, body io.Reader) (*http.Response, error) {
	resp, err := request(ctx, Socket(runDir), method, path, body)
	if errors.Is(err, fs.ErrPermission) && body == nil {
		if resp, err = request(ctx, ReaderSocket(runDir), method, path, nil); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			err = fs.ErrPermission // there is no group of readers
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w; %s", ErrNotRunning, Start())
	case errors.Is(err, fs.ErrPermission):
		return nil, forbidden(fmt.Sprintf("%s may be opened by root only, and read by members of group %s; use sudo", Socket(runDir), ReaderGroup))
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("rivulet runs here and does not answer in time (%w); try again, or see: sudo journalctl -n 50 -u rivulet", context.DeadlineExceeded)
	case err != nil:
		if u := new(url.Error); errors.As(err, &u) { // the address is of no use to users
			err = u.Err
		}
		return nil, fmt.Errorf("rivulet ended while it was asked: %w; rivulet status", err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	var f failure
	if json.Unmarshal(raw, &f) == nil && f.Error != "" {
		if f.Cure == "" {
			return nil, errors.New(f.Error)
		}
		return nil, &cure.Error{Err: errors.New(f.Error), Cure: f.Cure}
	}
	return nil, fmt.Errorf("the supervisor answered %s: %s; are the command and the running rivulet of the same version?", resp.Status, bytes.TrimSpace(raw))
}

func request(ctx context.Context, socket, method, path string, body io.Reader) (*http.Response, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://rivulet"+path, body)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}
