package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"

	"rivulet/fabric/peer"
)

// MaxBody is the longest JSON body that is read from a peer, bytes.
const MaxBody = 64 << 10

// Error is the body of every answer that is not a success.
type Error struct {
	Code    string `json:"code"`    // for programs; stays the same
	Message string `json:"message"` // for people, one line
	Cure    string `json:"cure,omitempty"`
	// Remote: another cluster wrote it. Its texts are cleaned, and its cure is dropped, since a stranger's advice is
	// not passed on. Code that shows it uses the code if it is known.
	Remote bool `json:"-"`
}

func (e *Error) Error() string {
	if e.Cure == "" {
		return e.Message
	}
	return e.Message + "; " + e.Cure
}

func Write(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"code":"internal","message":"the answer could not be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) //nolint:errcheck // the client has gone
}

func Fail(w http.ResponseWriter, status int, e *Error) { Write(w, status, e) }

// Read decodes the request's body into v. Unknown fields are ignored, so that newer peers can send more. On failure it
// has answered, and returns false.
func Read(w http.ResponseWriter, r *http.Request, v any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		Fail(w, http.StatusRequestEntityTooLarge, &Error{Code: "too-large", Message: fmt.Sprintf("the request is longer than %d bytes", MaxBody)})
		return false
	}
	if err != nil {
		Fail(w, http.StatusBadRequest, &Error{Code: "bad-request", Message: "the request broke off"})
		return false
	}
	if err := json.Unmarshal(body, v); err != nil {
		Fail(w, http.StatusBadRequest, &Error{Code: "bad-request", Message: "the request is not understood: " + peer.Text(err.Error()), Cure: "run the same version of rivulet on both sides"})
		return false
	}
	return true
}

// Call sends in (nil: no body) and decodes the answer into out (nil: ignored). Ctx bounds its time. An answer that is
// not a success is returned as *Error, whoever wrote it.
func Call(ctx context.Context, c *http.Client, method, url string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("rpc: encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return fmt.Errorf("rpc: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(req)
	if err != nil {
		return fmt.Errorf("rpc: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	if err != nil {
		return fmt.Errorf("rpc: read answer: %w", err)
	}
	if len(answer) > MaxBody {
		return &Error{Code: "too-large", Message: fmt.Sprintf("the answer of %s is longer than %d bytes", req.URL.Host, MaxBody)}
	}
	if resp.StatusCode/100 != 2 {
		return asError(resp.StatusCode, req.URL.Host, answer)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return &Error{Code: "bad-answer", Message: fmt.Sprintf("the answer of %s is not understood: %s", req.URL.Host, peer.Text(err.Error())), Cure: "run the same version of rivulet on both sides"}
	}
	return nil
}

func asError(status int, host string, body []byte) error {
	var e Error
	if json.Unmarshal(body, &e) != nil || e.Code == "" {
		return &Error{Code: "http", Message: fmt.Sprintf("%s answered %d %s", host, status, http.StatusText(status))}
	}
	return Received(e)
}

// Received cleans an error of another cluster.
func Received(e Error) *Error {
	out := &Error{Code: "unknown", Message: peer.Text(e.Message), Remote: true}
	if codeForm.MatchString(e.Code) {
		out.Code = e.Code
	}
	return out
}

var codeForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)
