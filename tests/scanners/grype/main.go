// What Grype reads from a CycloneDX document, as one JSON object.
package main

import (
	"encoding/json"
	"os"

	"github.com/anchore/grype/grype/pkg"
	syft "github.com/anchore/syft/syft/pkg"
)

type read struct {
	Distribution string            `json:"distribution"`
	Sources      map[string]string `json:"sources"`
	Libraries    map[string]string `json:"libraries"`
}

func main() {
	packages, context, _, err := pkg.Provide("sbom:"+os.Args[1], pkg.ProviderConfig{})
	if err != nil {
		panic(err)
	}
	said := read{Sources: map[string]string{}, Libraries: map[string]string{}}
	if context.Distro != nil {
		said.Distribution = context.Distro.Name() + " " + context.Distro.Version
	}
	for _, one := range packages {
		if one.Type != syft.DebPkg {
			said.Libraries[one.Name] = string(one.Type)
			continue
		}
		said.Sources[one.Name] = one.Name
		for _, upstream := range one.Upstreams {
			said.Sources[one.Name] = upstream.Name
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		panic(err)
	}
}
