package move

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rivulet/fabric/changes"
)

// Job is one move under way.
type Job struct {
	note   note
	volume string // the old one's name
	done   chan struct{}

	mu  sync.Mutex
	now Progress
	err error
}

// Progress is how far a move is.
type Progress struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	To        string `json:"to"`
	// Step is what is done at the moment.
	Step string `json:"step"`
	// Bytes are those that were carried in this try, of about Total.
	Bytes int64 `json:"bytes,omitempty"`
	Total int64 `json:"total,omitempty"`
	// Trouble is why the last try failed, while it is tried again.
	Trouble string `json:"trouble,omitempty"`
	// Kept names the old volume, where it is not removed.
	Kept string `json:"kept,omitempty"`
}

// The steps.
const (
	Holding   = "holding"   // no pod is to start; those that run are to end
	Copying   = "copying"   //
	Comparing = "comparing" // reading both sides again
	Switching = "switching"
	Undoing   = "undoing"
	Done      = "done"
)

// Progress tells how far the job is.
func (j *Job) Progress() Progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.now
	p.Namespace, p.Claim, p.To = j.note.Namespace, j.note.Claim, j.note.To
	return p
}

// Ended is closed when the job is over; Err then says how it went.
func (j *Job) Ended() <-chan struct{} { return j.done }

// Err is why the data were not moved, nil if they were.
func (j *Job) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

func (j *Job) set(f func(*Progress)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(&j.now)
}

func (j *Job) at(step string) { j.set(func(p *Progress) { p.Step = step }) }

func (j *Job) end(err error) {
	j.mu.Lock()
	j.err = err
	j.mu.Unlock()
	close(j.done)
}

// counted tells the job of what is read.
type counted struct {
	io.Reader
	job  *Job
	late *time.Timer // until the next part has to come
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil {
		c.late.Stop() // what was carried is compared now, which takes as long as it takes
	} else {
		c.late.Reset(stall)
	}
	c.job.set(func(p *Progress) { p.Bytes += int64(n) })
	return n, err
}

// retry tries again what another writer was faster with, and what an API server that
// restarts does not answer.
func retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || errors.As(err, new(final)) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			return err
		}
		if !changes.Wait(ctx, glance) {
			return err
		}
	}
}
