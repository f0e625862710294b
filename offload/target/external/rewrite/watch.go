package rewrite

import (
	"encoding/json"
	"io"
	"net/http"

	"rivulet/fabric/panics"
)

// stream translates a watch, frame by frame. Frames of others' objects are left out; bookmarks and errors pass.
func (c *call) stream(resp *http.Response) *http.Response {
	read, write := io.Pipe()
	body := resp.Body
	out := *resp
	out.Header = resp.Header.Clone()
	out.Header.Del("Content-Length")
	out.ContentLength = -1
	out.Body = &watched{PipeReader: read, campus: body}
	go func() {
		defer body.Close()
		defer panics.To(func(err error) { write.CloseWithError(err) })
		in := json.NewDecoder(body)
		in.UseNumber()
		to := json.NewEncoder(write)
		for {
			var frame tree
			if err := in.Decode(&frame); err != nil {
				write.CloseWithError(err)
				return
			}
			switch text(frame, "type") {
			case "ADDED", "MODIFIED", "DELETED":
				if o := at(frame, "object"); o == nil || !c.show(o) {
					continue
				}
			}
			if to.Encode(frame) != nil {
				return // the reader is gone
			}
		}
	}()
	return &out
}

// watched ends the campus's stream with the reader's.
type watched struct {
	*io.PipeReader
	campus io.Closer
}

func (w *watched) Close() error {
	_ = w.PipeReader.Close()
	return w.campus.Close()
}
