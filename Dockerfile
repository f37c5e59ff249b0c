# docker build -t vitlab . && docker run -p 8000:8000 -v ./models:/models:ro vitlab /models/model.safetensors
FROM python:3.13-slim
ARG PIP_ARGS=""
COPY . /source
RUN pip install --no-cache-dir $PIP_ARGS -c /source/constraints.txt "/source[serve,jpeg,openvino]" && useradd --create-home vitlab
USER vitlab
EXPOSE 8000
HEALTHCHECK --start-period=2m CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=5)"]
ENTRYPOINT ["python", "-m", "vitlab", "serve", "--host", "0.0.0.0"]
CMD ["/models/model.safetensors"]
