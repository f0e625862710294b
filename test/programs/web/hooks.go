package main

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// hooks serves webhooks and an API of its own, by HTTPS on port 8443, with the certificate of a folder.
//
//	/validate                refuses objects named bad
//	/mutate                  annotates objects
//	/apis/web.example/v1     the API: its resources, and /who: who asks
func hooks(dir string) error {
	mux := http.NewServeMux()
	review := func(path string, answer func(name string) map[string]any) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			var in struct {
				APIVersion, Kind string
				Request          struct{ UID, Name string }
			}
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			out := answer(in.Request.Name)
			out["uid"] = in.Request.UID
			json.NewEncoder(w).Encode(map[string]any{"apiVersion": in.APIVersion, "kind": in.Kind, "response": out})
		})
	}
	review("/validate", func(name string) map[string]any {
		return map[string]any{"allowed": name != "bad", "status": map[string]any{"message": "no bad ones"}}
	})
	review("/mutate", func(string) map[string]any {
		return map[string]any{"allowed": true, "patchType": "JSONPatch", "patch": []byte(`[{"op":"add","path":"/metadata/annotations","value":{"hook":"was here"}}]`)}
	})
	mux.HandleFunc("GET /apis/web.example/v1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"web.example/v1","resources":[{"name":"visits","singularName":"visit","kind":"Visit","namespaced":true,"verbs":["get"]}]}`)
	})
	mux.HandleFunc("GET /apis/web.example/v1/who", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Remote-User"))
	})
	return http.ListenAndServeTLS(":8443", dir+"/tls.crt", dir+"/tls.key", mux)
}
