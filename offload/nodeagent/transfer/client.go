package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"rivulet/fabric/rpc"
	"rivulet/offload/nodeagent/filetree"
)

// Remote is the Tree of a volume that another device serves by Routes.
type Remote struct {
	HTTP  *http.Client
	URL   string // of the volume
	Where string // begins its errors
	// Failure is the error of an answer; nil is for nodes of this cluster: the failure of the Tree there, *rpc.Error if
	// the node does not serve the volume, and any other error if that may pass.
	Failure func(status int, answer []byte) error
}

// Measure implements filetree.Tree.
func (t Remote) Measure(ctx context.Context) (out filetree.Total, err error) {
	return out, t.json(ctx, http.MethodGet, "/total", nil, 0, &out)
}

// SumUp implements filetree.Tree.
func (t Remote) SumUp(ctx context.Context) (out filetree.Sum, err error) {
	return out, t.json(ctx, http.MethodGet, "/sum", nil, 0, &out)
}

// Pack implements filetree.Tree.
func (t Remote) Pack(ctx context.Context, w io.Writer) error {
	body, err := t.Open(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(w, body); err != nil {
		return fmt.Errorf("%s: %w", t.Where, err)
	}
	return nil
}

// Open returns what Pack writes.
func (t Remote) Open(ctx context.Context) (io.ReadCloser, error) {
	return t.do(ctx, http.MethodGet, "", nil, 0)
}

// Replace implements filetree.Tree. It waits for a pending Read of files, which ends with ctx.
func (t Remote) Replace(ctx context.Context, size int64, files io.Reader) (out filetree.Sum, err error) {
	// The transport may read its body after the answer.
	from, to := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.Copy(to, files)
		to.CloseWithError(err)
	}()
	err = t.json(ctx, http.MethodPut, "", from, size, &out)
	from.Close()
	<-done
	return out, err
}

func (t Remote) json(ctx context.Context, method, what string, body io.Reader, size int64, out any) error {
	answer, err := t.do(ctx, method, what, body, size)
	if err != nil {
		return err
	}
	defer answer.Close()
	if err := json.NewDecoder(io.LimitReader(answer, rpc.MaxBody)).Decode(out); err != nil {
		return fmt.Errorf("%s: %w", t.Where, err)
	}
	return nil
}

// do sends one request and returns the body of a successful answer.
func (t Remote) do(ctx context.Context, method, what string, body io.Reader, size int64) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, t.URL+what, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set(SizeHeader, strconv.FormatInt(size, 10))
	}
	resp, err := t.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Where, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, rpc.MaxBody))
	if err == nil && t.Failure != nil {
		err = t.Failure(resp.StatusCode, text)
	} else if err == nil {
		err = failure(resp.StatusCode, text)
	}
	if known := new(rpc.Error); resp.StatusCode == http.StatusNotFound && !errors.As(err, &known) {
		err = &rpc.Error{Code: "no-volumes", Message: "it does not know how to carry volumes", Cure: "upgrade it"}
	}
	return nil, fmt.Errorf("%s: %w", t.Where, err)
}

// failure is Remote.Failure for nodes of this cluster.
func failure(status int, answer []byte) error {
	var said rpc.Error
	if json.Unmarshal(answer, &said) != nil || said.Code == "" {
		return fmt.Errorf("it answers %d %s", status, http.StatusText(status))
	}
	known := rpc.Received(said)
	for _, f := range failures {
		if f.code == known.Code {
			return reported{known.Message, f.err}
		}
	}
	if status == http.StatusServiceUnavailable {
		return errors.New(known.Message)
	}
	return known
}

// reported is an error with the text of another device.
type reported struct {
	text string
	error
}

func (r reported) Error() string { return r.text }
func (r reported) Unwrap() error { return r.error }
