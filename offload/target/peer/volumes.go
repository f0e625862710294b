package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"rivulet/fabric/rpc"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/provider/tenancy"
)

// The files of a claim in a twin, by the routes of docs/design/architecture.md. claim is its name there.

// VolumeTotal returns their size.
func (t *Target) VolumeTotal(ctx context.Context, home, claim string) (out filetree.Total, err error) {
	return out, t.volumeJSON(ctx, home, claim, "/total", &out)
}

// VolumeSum makes the peer read all of them.
func (t *Target) VolumeSum(ctx context.Context, home, claim string) (out filetree.Sum, err error) {
	return out, t.volumeJSON(ctx, home, claim, "/sum", &out)
}

// VolumeRead returns the files as filetree.Pack writes them.
func (t *Target) VolumeRead(ctx context.Context, home, claim string) (io.ReadCloser, error) {
	resp, err := t.volume(ctx, http.MethodGet, home, claim, "", nil, 0)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// VolumeWrite replaces the files by those of the stream, and returns what the peer then has.
func (t *Target) VolumeWrite(ctx context.Context, home, claim string, size int64, files io.Reader) (out filetree.Sum, err error) {
	resp, err := t.volume(ctx, http.MethodPut, home, claim, "", files, size)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	return out, json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out)
}

func (t *Target) volumeJSON(ctx context.Context, home, claim, what string, out any) error {
	resp, err := t.volume(ctx, http.MethodGet, home, claim, what, nil, 0)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	return decode(raw, out)
}

// volume sends one request. A peer's refusal is a *rpc.Error, and final unless its code is temporary.
func (t *Target) volume(ctx context.Context, method, home, claim, what string, body io.Reader, size int64) (*http.Response, error) {
	path := t.cfg.BaseURL + "/v1/volumes/" + url.PathEscape(home) + "/" + url.PathEscape(claim) + what
	req, err := http.NewRequestWithContext(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set(tenancy.VolumeSizeHeader, strconv.FormatInt(size, 10))
	}
	resp, err := t.cfg.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("volume on %s: %w", t.cfg.Name, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("volume on %s: %w", t.cfg.Name, err)
	}
	err = refusal(resp.StatusCode, text)
	if told := new(rpc.Error); resp.StatusCode == http.StatusNotFound && !errors.As(err, &told) {
		return nil, fmt.Errorf("%s: %w", t.cfg.Name, &rpc.Error{Code: "no-volumes", Message: "it does not know how to carry volumes", Cure: "upgrade it"})
	}
	return nil, fmt.Errorf("volume on %s: %w", t.cfg.Name, err)
}
