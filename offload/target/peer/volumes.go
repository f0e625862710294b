package peer

import (
	"context"
	"io"
	"net/url"

	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/nodeagent/transfer"
)

// volume are the files of a claim in a twin, by the routes of docs/design/architecture.md. claim is its name there. A
// peer's refusal is a *rpc.Error, and final unless its code is temporary.
func (t *Target) volume(home, claim string) transfer.Remote {
	return transfer.Remote{HTTP: t.cfg.HTTP, URL: t.cfg.BaseURL + "/v1/volumes/" + url.PathEscape(home) + "/" + url.PathEscape(claim), Where: "volume on " + t.cfg.Name, Failure: refusal}
}

// VolumeTotal returns their size.
func (t *Target) VolumeTotal(ctx context.Context, home, claim string) (filetree.Total, error) {
	return t.volume(home, claim).Measure(ctx)
}

// VolumeSum makes the peer read all of them.
func (t *Target) VolumeSum(ctx context.Context, home, claim string) (filetree.Sum, error) {
	return t.volume(home, claim).SumUp(ctx)
}

// VolumeRead returns the files as filetree.Pack writes them.
func (t *Target) VolumeRead(ctx context.Context, home, claim string) (io.ReadCloser, error) {
	return t.volume(home, claim).Open(ctx)
}

// VolumeWrite replaces the files by those of the stream, and returns what the peer then has.
func (t *Target) VolumeWrite(ctx context.Context, home, claim string, size int64, files io.Reader) (filetree.Sum, error) {
	return t.volume(home, claim).Replace(ctx, size, files)
}
