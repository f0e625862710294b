// Program dashboards writes Grafana dashboards, alert rules for Prometheus, and the page of the alerts, into the folder
// docs of the repository: `make dashboards`. It reads nothing. It has a module of its own, so that the Grafana
// Foundation SDK is no dependency of the product.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	docs := flag.String("docs", "docs", "the folder docs of the repository")
	flag.Parse()
	if err := write(*docs); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func write(docs string) error {
	files := map[string][]byte{"monitoring/alerts.yml": rules(), "reference/alerts.md": page()}
	for name, board := range boards() {
		built, err := board.Build()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		text, err := json.MarshalIndent(built, "", "  ")
		if err != nil {
			return err
		}
		files["monitoring/"+name+".json"] = append(text, '\n')
	}
	for name, content := range files {
		path := filepath.Join(docs, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
