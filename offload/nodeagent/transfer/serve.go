// Package transfer serves the files of one volume by HTTP, to another cluster or to the server of this node's cluster,
// and is the client of both (docs/design/volumes.md). It has no state. Failure: an answer with a code, or, once files are
// on their way, the end of the connection: a part is never taken for the whole. A request without progress for two
// minutes ends.
package transfer

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"rivulet/fabric/rpc"
	"rivulet/offload/nodeagent/filetree"
)

// SizeHeader is a header of a PUT with the number of bytes that follow.
const SizeHeader = "Rivulet-Volume-Size"

// stall is how long a transfer may make no progress.
const stall = 2 * time.Minute

// ErrSize: the request has no valid SizeHeader.
var ErrSize = errors.New("the size of the volume is missing")

// Operation serves one kind of request; a nil answer without an error was written already.
type Operation func(x *exchange, files filetree.Tree) (answer any, err error)

// Routes are the operations, by the method and what follows the path of a volume.
var Routes = map[[2]string]Operation{
	{http.MethodGet, "/total"}: func(x *exchange, files filetree.Tree) (any, error) { return files.Measure(x.ctx) },
	{http.MethodGet, "/sum"}:   func(x *exchange, files filetree.Tree) (any, error) { return files.SumUp(x.ctx) },
	{http.MethodGet, ""}:       read,
	{http.MethodPut, ""}:       replace,
}

// Serve runs an operation until ctx ends, which is that of the request and of the hold of the volume.
func Serve(ctx context.Context, w http.ResponseWriter, r *http.Request, files filetree.Tree, do Operation) (answer any, err error) {
	defer cutShort(ctx, w)()
	return do(&exchange{ctx: ctx, w: w, r: r}, files)
}

// exchange is one request. Write sends to the client, Read receives.
type exchange struct {
	ctx  context.Context
	w    http.ResponseWriter
	r    *http.Request
	sent bool
}

func read(x *exchange, files filetree.Tree) (any, error) {
	x.w.Header().Set("Content-Type", "application/x-tar")
	err := files.Pack(x.ctx, x)
	if err != nil && x.sent {
		panic(http.ErrAbortHandler)
	}
	return nil, err
}

func replace(x *exchange, files filetree.Tree) (any, error) {
	size, err := strconv.ParseInt(x.r.Header.Get(SizeHeader), 10, 64)
	if err != nil || size < 0 {
		return nil, ErrSize
	}
	return files.Replace(x.ctx, size, x)
}

func (x *exchange) Write(p []byte) (int, error) {
	// Before ctx is checked, since cutShort sets its deadline after the end of ctx.
	_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(stall))
	if err := x.ctx.Err(); err != nil {
		return 0, err
	}
	x.sent = true
	return x.w.Write(p)
}

func (x *exchange) Read(p []byte) (int, error) {
	_ = http.NewResponseController(x.w).SetReadDeadline(time.Now().Add(stall))
	if err := x.ctx.Err(); err != nil {
		return 0, err
	}
	return x.r.Body.Read(p)
}

// cutShort ends blocked reads and writes of the connection with ctx, until stop. After stop it does not use w, which a
// handler must not do after its return: net/http would panic.
func cutShort(ctx context.Context, w http.ResponseWriter) (stop func()) {
	conn := http.NewResponseController(w)
	all := func(at time.Time) { // a transport without deadlines ends with its context
		_ = conn.SetReadDeadline(at)
		_ = conn.SetWriteDeadline(at)
	}
	cut := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(cut)
		all(time.Unix(1, 0))
	})
	return func() {
		if unhook() {
			all(time.Time{})
		} else {
			<-cut
		}
	}
}

// failures are those of a Tree that have a code.
var failures = []struct {
	err    error
	status int
	code   string
}{
	{filetree.ErrNoRoom, http.StatusInsufficientStorage, "no-room"},
	{filetree.ErrTooLarge, http.StatusRequestEntityTooLarge, "too-large"},
	{filetree.ErrInUse, http.StatusConflict, "in-use"},
	{filetree.ErrBusy, http.StatusTooManyRequests, "too-many-requests"},
	{ErrSize, http.StatusBadRequest, "bad-size"},
}

// Code is how a failure is answered; ok is false if it has no code.
func Code(err error) (status int, code string, ok bool) {
	for _, f := range failures {
		if errors.Is(err, f.err) {
			return f.status, f.code, true
		}
	}
	return 0, "", false
}

// Answer ends a request of the server of this node's cluster. An *rpc.Error is final; any other error without a code may
// pass.
func Answer(w http.ResponseWriter, answer any, err error) {
	var known *rpc.Error
	status, code, ok := Code(err)
	switch {
	case err == nil && answer == nil:
	case err == nil:
		rpc.Write(w, http.StatusOK, answer)
	case errors.As(err, &known):
		rpc.Fail(w, http.StatusConflict, known)
	case ok:
		rpc.Fail(w, status, &rpc.Error{Code: code, Message: err.Error()})
	default:
		rpc.Fail(w, http.StatusServiceUnavailable, &rpc.Error{Code: "unavailable", Message: err.Error()})
	}
}
