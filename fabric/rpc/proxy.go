package rpc

import "net/http"

// EndBody is a httputil.ReverseProxy's ModifyResponse for a request r that it passes on by HTTP/2: after an answer that
// refuses the request the rest of the request's body is not awaited. The client does not send it (net/http2 stops at
// such an answer until it is whole), and the transport would wait for it before the answer is whole: for ever.
func EndBody(r *http.Request) func(*http.Response) error {
	return func(resp *http.Response) error {
		if resp.StatusCode > 299 && r.Body != nil {
			_ = r.Body.Close() // nobody reads it any more
		}
		return nil
	}
}
