# captioner on a CPU, with the bundled models, the web page and the official metrics.
#
#   docker build --tag captioner --build-arg TORCH_INDEX=URL .
#   docker run --rm --volume "$PWD/photos:/work/photos" captioner caption photos --out photos/captions
#
# URL is the index of torch's CPU wheels: choose "CPU" on torch's own installation page, and take what it prints after
# --index-url. Without it the image is 4 GB larger, by the CUDA libraries that torch brings along.
FROM python:3.12-slim

ARG TORCH_INDEX=""
# The lower bounds of setup.cfg, as everywhere.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} 'torch>=2.11' 'torchvision>=0.26'

# What the package is built from, and nothing else: see .dockerignore.
COPY setup.cfg pyproject.toml README.md LICENSE /source/
COPY captioner /source/captioner
RUN pip install --no-cache-dir '/source[java,serve]' && rm -r /source

# Nobody in particular: name yourself with --user where files of yours are to be written.
RUN useradd --uid 1000 --create-home captioner
USER 1000
WORKDIR /work
EXPOSE 8000
ENTRYPOINT ["captioner"]
CMD ["--help"]
